//! Removes what nobody has used for long.

use sqlx::Row as _;
use tokio::time::Duration;

use super::connections::{Connections, Value, Within};
use super::error::Failure;
use crate::seats::Urgency;

const IDLE: &str = include_str!("sql/idle.sql");
const REMOVE: &str = include_str!("sql/remove.sql");
const DROP_DEAD: &str = "DELETE FROM lockkit_place \
     WHERE expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000 LIMIT 1000";

const LIMIT: Duration = Duration::from_secs(10);

/// Removes some of the rows that nobody has used for over a day, one at a time: whoever comes for
/// one of them waits for no other.
pub(super) async fn sweep(connections: &Connections) -> Result<(), Failure> {
    connections.write(DROP_DEAD, &[], Urgency::Asks, Within::new(LIMIT)).await?;
    for row in connections.read(IDLE, &[], Within::new(LIMIT)).await? {
        let of_lock = [row.try_get("namespace")?, row.try_get("name")?].map(Value::Bytes);
        connections.write(REMOVE, &of_lock, Urgency::Asks, Within::new(LIMIT)).await?;
    }
    Ok(())
}
