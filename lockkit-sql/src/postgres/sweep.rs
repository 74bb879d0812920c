//! Removes what nobody has used for a long time.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;

use super::connections::Connections;
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Urgency;

const SWEEP: &str = "SELECT lockkit_sweep()";
const SWEEP_OBSERVED: &str = include_str!("sql/sweep_observed.sql");
const SWEEP_OF_SESSIONS: &str = "SELECT lockkit_session_sweep()";

const LIMIT: Duration = Duration::from_secs(30);

/// Removes some of the rows of leases that nobody has used for over a day, and returns how many. A
/// sweep that `observes` removes no row with an owner.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<u64, Failure> {
    count(&connections, if observes { SWEEP_OBSERVED } else { SWEEP }).await
}

/// The same for sessions, over a connection that is closed afterwards: on the session, all its
/// locks would wait for the sweep.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<u64, Failure> {
    let connections = Connections::new(endpoint, 2);
    let swept = count(&connections, SWEEP_OF_SESSIONS).await;
    connections.close().await;
    swept
}

/// The number that a statement yields.
async fn count(connections: &Connections, statement: &'static str) -> Result<u64, Failure> {
    let answer = connections.request(statement, &[], Urgency::Asks, LIMIT).await?;
    let count: i64 = answer.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(count.unsigned_abs())
}
