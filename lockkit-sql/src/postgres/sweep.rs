//! Removes what nobody has used for long.

use std::sync::Arc;
use std::time::Duration;

use super::connections::Connections;
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Urgency;

const SWEEP: &str = "SELECT lockkit_sweep()";
const SWEEP_OBSERVED: &str = include_str!("sql/sweep_observed.sql");
const SWEEP_OF_SESSIONS: &str = "SELECT lockkit_session_sweep()";

const LIMIT: Duration = Duration::from_secs(30);

/// Removes some of the rows of leases that nobody has used for over a day; of who observes, none
/// with an owner.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<(), Failure> {
    let statement = if observes { SWEEP_OBSERVED } else { SWEEP };
    connections.request(statement, &[], Urgency::Asks, LIMIT).await?;
    Ok(())
}

/// The same of sessions, over a connection that is closed afterwards: on the session, all its locks
/// would wait for it.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<(), Failure> {
    let connections = Connections::new(endpoint, 2);
    let swept = connections.request(SWEEP_OF_SESSIONS, &[], Urgency::Asks, LIMIT).await;
    connections.close().await;
    swept.map(drop)
}
