//! Removes what nobody has used for a long time.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::Limit;
use sqlx::Row as _;

use super::connections::{Connections, Value};
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Urgency;

const IDLE: &str = include_str!("sql/idle.sql");
const REMOVE: &str = include_str!("sql/remove.sql");
// Nothing is removed where no writes are allowed any more, whoever asks: on a replica, that is for the
// server that it follows.
const DROP_DEAD: &str = "DELETE FROM lockkit_place \
     WHERE expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000 \
       AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') LIMIT 1000";

const DROP_UNHEARD: &str = "DELETE FROM lockkit_bell \
     WHERE expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 60 * 1000000 \
       AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') LIMIT 1000";

const SWEEP_OF_SESSIONS: &str = include_str!("sql/session_sweep.sql");

const LIMIT: Duration = Duration::from_secs(10);

/// Removes some of the rows that nobody has used for over a day, and returns how many it has found.
/// Rows of locks are removed one at a time, so that whoever comes for one of them does not wait for
/// the others. What one sweep finds, others may remove at the same time: if only what is removed
/// counted, all of them would take it for little. A sweep that `observes` removes no row with an
/// owner: that its hold is over is not for the server's clock to say, and whoever finds no row
/// takes the lock at once.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<u64, Failure> {
    let observes = Value::Integer(observes.into());
    let mut found = 0;
    // A waiter leaves a bell behind, and nobody removes it sooner.
    for statement in [DROP_DEAD, DROP_UNHEARD] {
        found += remove(&connections, statement, &[]).await?;
    }
    for row in connections.read(IDLE, &[observes], Limit::new(LIMIT)).await? {
        let [namespace, name] = [row.try_get("namespace")?, row.try_get("name")?].map(Value::Bytes);
        remove(&connections, REMOVE, &[namespace, name, observes]).await?;
        found += 1;
    }
    Ok(found)
}

/// The same for sessions, over a connection that is closed afterwards: on the session, all its
/// locks would wait for the sweep.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<u64, Failure> {
    let connections = Connections::new(endpoint, 2);
    let swept = remove(&connections, SWEEP_OF_SESSIONS, &[]).await;
    connections.close().await;
    swept
}

async fn remove(
    connections: &Connections,
    statement: &'static str,
    values: &[Value<'_>],
) -> Result<u64, Failure> {
    let removed = connections.write(statement, values, Urgency::Asks, Limit::new(LIMIT)).await?;
    Ok(removed.rows_affected())
}
