//! Removes what nobody has used for a long time.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::connections::{Waits, ask};
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Source as _;

const SWEEP: &str = include_str!("sql/sweep.sql");
const SWEEP_OBSERVED: &str = include_str!("sql/sweep_observed.sql");
const SWEEP_OF_SESSIONS: &str = include_str!("sql/session_sweep.sql");

const LIMIT: Duration = Duration::from_secs(30);

/// Removes some of the rows of leases that nobody has used for over a day, and returns how many. A
/// sweep that `observes` removes no row with an owner.
pub(super) async fn sweep(endpoint: Endpoint, observes: bool) -> Result<u64, Failure> {
    match observes {
        true => alone(endpoint, SWEEP_OBSERVED, Waits::AsWeSay).await,
        false => alone(endpoint, SWEEP, Waits::AsItSays).await,
    }
}

/// The same for sessions.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<u64, Failure> {
    alone(endpoint, SWEEP_OF_SESSIONS, Waits::AsItSays).await
}

/// Sweeps over a connection that is closed afterwards: a sweep takes its time, and on a connection of the
/// driver's, asks would wait for that. On a session, all its locks would. It is tried once: there is
/// another sweep later.
async fn alone(endpoint: Endpoint, statement: &'static str, waits: Waits) -> Result<u64, Failure> {
    let mut connection = endpoint.with_requests(&[]).connect().await?;
    let sweeping = ask(&mut connection, sqlx::query(statement), waits);
    let swept = timeout(LIMIT, sweeping).await.unwrap_or(Err(Failure::NoAnswer(LIMIT)));
    Endpoint::close(connection).await;
    count(&swept?)
}

/// The number that a statement has yielded.
fn count(rows: &[PgRow]) -> Result<u64, Failure> {
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(count.unsigned_abs())
}
