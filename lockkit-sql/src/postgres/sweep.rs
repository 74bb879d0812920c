//! Removes what nobody has used for a long time.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connections::Connections;
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Urgency;

const SWEEP: &str = include_str!("sql/sweep.sql");
const SWEEP_OBSERVED: &str = include_str!("sql/sweep_observed.sql");
const SWEEP_OF_SESSIONS: &str = include_str!("sql/session_sweep.sql");

const LIMIT: Duration = Duration::from_secs(30);

/// Removes some of the rows of leases that nobody has used for over a day, and returns how many. A
/// sweep that `observes` removes no row with an owner.
pub(super) async fn sweep(endpoint: Endpoint, observes: bool) -> Result<u64, Failure> {
    alone(endpoint, async |connections| match observes {
        true => connections.request_of_tables(SWEEP_OBSERVED, &[], LIMIT).await,
        false => connections.request(SWEEP, &[], Urgency::Asks, LIMIT).await,
    })
    .await
}

/// The same for sessions.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<u64, Failure> {
    alone(endpoint, async |connections| {
        connections.request(SWEEP_OF_SESSIONS, &[], Urgency::Asks, LIMIT).await
    })
    .await
}

/// Sweeps over a connection that is closed afterwards: a sweep takes its time, and on a connection of the
/// driver's, asks would wait for that. On a session, all its locks would.
async fn alone(
    endpoint: Endpoint,
    sweep: impl AsyncFnOnce(&Connections) -> Result<Vec<PgRow>, Failure>,
) -> Result<u64, Failure> {
    let connections = Connections::new(endpoint.with_requests(&[]), 2);
    let swept = sweep(&connections).await;
    connections.close().await;
    count(&swept?)
}

/// The number that a statement has yielded.
fn count(rows: &[PgRow]) -> Result<u64, Failure> {
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(count.unsigned_abs())
}
