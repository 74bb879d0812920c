//! Whether the server is fit to keep the locks of sessions.

use lockkit_core::{Diagnosis, Namespace};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::driver::PostgresSessionDriver;
use crate::postgres::connections::Value;
use crate::postgres::diagnosis::{clock, connections, news, rights};
use crate::postgres::error::Failure;

const HEALTH: &str = include_str!("../sql/session_health.sql");
const TOKENS: &str =
    "SELECT max(token) - lockkit_now() AS ahead FROM lockkit_session WHERE namespace = $1";

/// Looks, and changes nothing.
pub(super) async fn diagnose(
    driver: &PostgresSessionDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let rows = driver.read(HEALTH, &[]).await?;
    let Some(row) = rows.first() else { return Err(sqlx::Error::RowNotFound.into()) };
    let tokens = driver.read(TOKENS, &[Value::Text(namespace.as_str())]).await;
    Ok(vec![
        Diagnosis::good(
            "version",
            format!("PostgreSQL {}, layout version 1", row.try_get::<&str, _>("version")?),
        ),
        rights(row)?,
        Diagnosis::good(
            "session",
            format!("the server ends it after {:?} without a heartbeat", driver.sessions.ttl()),
        ),
        failover(row)?,
        locks(row)?,
        clock(tokens, "lockkit_session", "look at the server's time synchronisation"),
        connections(row)?,
        news(row)?,
    ])
}

fn failover(row: &PgRow) -> Result<Diagnosis, Failure> {
    Ok(match row.try_get::<i64, _>("standbys")? {
        0 => Diagnosis::good("failover", "no standby is connected, as far as this user may see"),
        standbys => Diagnosis::warning(
            "failover",
            format!("{standbys} standbys: a failover frees all locks before their holders know"),
            "let resources check fencing tokens, or use leases: `hold=lease`",
        ),
    })
}

fn locks(row: &PgRow) -> Result<Diagnosis, Failure> {
    let (used, most): (i64, i64) = (row.try_get("locks")?, row.try_get("most_locks")?);
    let found = format!("{used} advisory locks are held, in a table made for {most} locks");
    Ok(match used * 2 < most {
        true => Diagnosis::good("locks", found),
        false => Diagnosis::warning(
            "locks",
            format!("{found} of all kinds: where it is full, the others' statements fail as well"),
            "raise max_locks_per_transaction",
        ),
    })
}
