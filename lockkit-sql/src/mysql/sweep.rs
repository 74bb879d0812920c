//! Removes what nobody has used for long.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;

use super::connections::{Connections, Value, Within};
use super::endpoint::Endpoint;
use super::error::Failure;
use crate::seats::Urgency;

const IDLE: &str = include_str!("sql/idle.sql");
const REMOVE: &str = include_str!("sql/remove.sql");
const DROP_DEAD: &str = "DELETE FROM lockkit_place \
     WHERE expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000 LIMIT 1000";

const DROP_UNHEARD: &str = "DELETE FROM lockkit_bell \
     WHERE expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 60 * 1000000 LIMIT 1000";

const SWEEP_OF_SESSIONS: &str = include_str!("sql/session_sweep.sql");

/// How often some of the rows are removed at once.
const MOST_PARTS: usize = 100;

const LIMIT: Duration = Duration::from_secs(10);

/// Removes some of the rows that nobody has used for over a day, one at a time: whoever comes for
/// one of them waits for no other. Of who observes none with an owner: that its hold is over is not
/// for the server's clock to say, and whoever finds no row takes the lock at once.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<(), Failure> {
    let observes = Value::Integer(observes.into());
    connections.write(DROP_DEAD, &[], Urgency::Asks, Within::new(LIMIT)).await?;
    // Who waits for a lock leaves one, and nobody removes it sooner.
    for _ in 0..MOST_PARTS {
        let dropped =
            connections.write(DROP_UNHEARD, &[], Urgency::Asks, Within::new(LIMIT)).await?;
        if dropped.rows_affected() == 0 {
            break;
        }
    }
    for row in connections.read(IDLE, &[observes], Within::new(LIMIT)).await? {
        let [namespace, name] = [row.try_get("namespace")?, row.try_get("name")?].map(Value::Bytes);
        let of_lock = [namespace, name, observes];
        connections.write(REMOVE, &of_lock, Urgency::Asks, Within::new(LIMIT)).await?;
    }
    Ok(())
}

/// The same of sessions, over a connection that is closed afterwards: on the session, all its locks
/// would wait for it.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<(), Failure> {
    let connections = Connections::new(endpoint, 2);
    let within = Within::new(LIMIT);
    let swept = connections.write(SWEEP_OF_SESSIONS, &[], Urgency::Asks, within).await;
    connections.close().await;
    swept.map(drop)
}
