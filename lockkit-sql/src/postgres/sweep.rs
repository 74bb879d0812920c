//! Removes what nobody has used for long.

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

/// How often some of the rows are removed at once.
const MOST_PARTS: usize = 100;

/// Removes the rows of leases that nobody has used for over a day, some at a time; of who observes,
/// none with an owner.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<(), Failure> {
    in_parts(&connections, if observes { SWEEP_OBSERVED } else { SWEEP }).await
}

/// The same of sessions, over a connection that is closed afterwards: on the session, all its locks
/// would wait for it.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<(), Failure> {
    let connections = Connections::new(endpoint, 2);
    let swept = in_parts(&connections, SWEEP_OF_SESSIONS).await;
    connections.close().await;
    swept
}

/// Carries out a statement that says how many rows it has removed, until there are none.
async fn in_parts(connections: &Connections, statement: &'static str) -> Result<(), Failure> {
    for _ in 0..MOST_PARTS {
        let answer = connections.request(statement, &[], Urgency::Asks, LIMIT).await?;
        let removed: i64 = answer.first().map_or(Ok(0), |row| row.try_get(0))?;
        if removed == 0 {
            break;
        }
    }
    Ok(())
}
