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

/// Removes the rows that nobody has used for over a day, some at a time, and those of locks one at a
/// time: whoever comes for one of them waits for no other. Of who observes none with an owner: that
/// its hold is over is not for the server's clock to say, and whoever finds no row takes the lock at
/// once.
pub(super) async fn sweep(connections: Arc<Connections>, observes: bool) -> Result<(), Failure> {
    let observes = Value::Integer(observes.into());
    in_parts(&connections, DROP_DEAD).await?;
    // Who waits for a lock leaves one, and nobody removes it sooner.
    in_parts(&connections, DROP_UNHEARD).await?;
    for _ in 0..MOST_PARTS {
        let mut removed = 0;
        for row in connections.read(IDLE, &[observes], Within::new(LIMIT)).await? {
            let [namespace, name] =
                [row.try_get("namespace")?, row.try_get("name")?].map(Value::Bytes);
            let of_lock = [namespace, name, observes];
            let gone = connections.write(REMOVE, &of_lock, Urgency::Asks, Within::new(LIMIT));
            removed += gone.await?.rows_affected();
        }
        if removed == 0 {
            break;
        }
    }
    Ok(())
}

/// The same of sessions, over a connection that is closed afterwards: on the session, all its locks
/// would wait for it.
pub(super) async fn sweep_of_sessions(endpoint: Endpoint) -> Result<(), Failure> {
    let connections = Connections::new(endpoint, 2);
    let swept = in_parts(&connections, SWEEP_OF_SESSIONS).await;
    connections.close().await;
    swept
}

/// Carries out a statement that removes some rows, until there are none.
async fn in_parts(connections: &Connections, statement: &'static str) -> Result<(), Failure> {
    for _ in 0..MOST_PARTS {
        let write = connections.write(statement, &[], Urgency::Asks, Within::new(LIMIT));
        if write.await?.rows_affected() == 0 {
            break;
        }
    }
    Ok(())
}
