//! Whether the server is fit to keep locks.

use lockkit_core::{Diagnosis, Namespace};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connections::Value;
use super::driver::PostgresDriver;
use super::error::Failure;

const HEALTH: &str = include_str!("sql/health.sql");
const TOKENS: &str =
    "SELECT max(token) - lockkit_now() AS ahead FROM lockkit_lock WHERE namespace = $1";

/// The oldest major version that still gets fixes from its makers.
const OLDEST: i32 = 14;
/// How long a request must be able to take, in milliseconds.
const LONG_REQUEST: i64 = 5_000;
/// An hour, in microseconds: more than servers' clocks should ever differ by.
const FAR_AHEAD: i64 = 60 * 60 * 1_000_000;
const CLOCK_OF_LEASES: &str =
    "look at the server's time synchronisation; leases count on its clock";
const MANY_DEAD_ROWS: i64 = 100_000;

/// Looks, and changes nothing.
pub(super) async fn diagnose(
    driver: &PostgresDriver,
    namespace: &Namespace,
) -> Result<Vec<Diagnosis>, Failure> {
    let rows = driver.read(HEALTH, &[]).await?;
    let Some(row) = rows.first() else { return Err(sqlx::Error::RowNotFound.into()) };
    let tokens = driver.read(TOKENS, &[Value::Text(namespace.as_str())]).await;
    Ok(vec![
        version(row)?,
        rights(row)?,
        persistence(row)?,
        replication(row)?,
        timeouts(row)?,
        clock(tokens, "lockkit_lock", CLOCK_OF_LEASES),
        connections(row)?,
        pooler(driver),
        vacuum(row)?,
        news(row)?,
    ])
}

fn version(row: &PgRow) -> Result<Diagnosis, Failure> {
    let version: &str = row.try_get("version")?;
    let found = format!("PostgreSQL {version}, layout version 1");
    Ok(match row.try_get::<i32, _>("version_number")? / 10_000 {
        OLDEST.. => Diagnosis::good("version", found),
        _ => Diagnosis::warning(
            "version",
            format!("{found}: it gets no more fixes"),
            format!("upgrade to {OLDEST} or later"),
        ),
    })
}

/// The rights that locks need.
pub(super) fn rights(row: &PgRow) -> Result<Diagnosis, Failure> {
    if row.try_get("is_read_only")? {
        return Ok(Diagnosis::error(
            "rights",
            "the server takes no writes: default_transaction_read_only is on, or it is a standby by now",
            "set default_transaction_read_only = off, or connect to the server that takes writes",
        ));
    }
    let (who, missing): (&str, &str) = (row.try_get("who")?, row.try_get("missing_rights")?);
    let tables_to_grant: &str = row.try_get("tables_to_grant")?;
    Ok(match missing {
        "" => Diagnosis::good("rights", format!("{who} has all rights that locks need")),
        missing => Diagnosis::error(
            "rights",
            format!("{who} lacks rights ({missing})"),
            match missing.contains("EXECUTE") {
                true => format!(
                    "{tables_to_grant}, and EXECUTE on the functions lockkit_* and on PostgreSQL's own that are named"
                ),
                false => tables_to_grant.into(),
            },
        ),
    })
}

fn persistence(row: &PgRow) -> Result<Diagnosis, Failure> {
    let error = |finding: &str, advice: &str| Ok(Diagnosis::error("persistence", finding, advice));
    if !row.try_get::<bool, _>("is_logged")? {
        return error(
            "the table of locks is unlogged, so that a crash of the server empties it",
            "ALTER TABLE lockkit_lock SET LOGGED",
        );
    }
    if !row.try_get::<bool, _>("syncs")? {
        return error(
            "fsync is off: a crash of the machine may lose locks that were granted, or the database",
            "set fsync = on",
        );
    }
    if !row.try_get::<bool, _>("writes_full_pages")? {
        return error(
            "full_page_writes is off: a crash of the machine may damage the database",
            "set full_page_writes = on",
        );
    }
    let found = match row.try_get("synchronous_commit")? {
        "off" => "synced before each answer, although synchronous_commit is off for others",
        _ => "synced before each answer",
    };
    Ok(Diagnosis::good("persistence", found))
}

fn replication(row: &PgRow) -> Result<Diagnosis, Failure> {
    let is_waited_for: bool = row.try_get("waits_for_standbys")?;
    let commit: &str = row.try_get("synchronous_commit")?;
    Ok(match row.try_get::<i64, _>("standbys")? {
        0 => Diagnosis::good("replication", "no standby is connected, as far as this user may see"),
        // Locks turn `off` into `on`.
        standbys if is_waited_for && commit != "local" => Diagnosis::good(
            "replication",
            format!("{standbys} standbys, of which commits wait for some"),
        ),
        standbys => Diagnosis::warning(
            "replication",
            format!(
                "{standbys} standbys, and commits do not wait for them: a failover may forget \
                 locks that were granted"
            ),
            "set synchronous_standby_names, and synchronous_commit to on, or fence by tokens",
        ),
    })
}

fn timeouts(row: &PgRow) -> Result<Diagnosis, Failure> {
    let statement: i64 = row.try_get("statement_timeout")?;
    let idle: i64 = row.try_get("idle_session_timeout")?;
    if (1..LONG_REQUEST).contains(&statement) {
        return Ok(Diagnosis::warning(
            "timeouts",
            format!("statement_timeout is {statement} ms: requests fail that take longer"),
            "ALTER ROLE ... SET statement_timeout = '5s', or 0, for the role that locks",
        ));
    }
    if (1..60_000).contains(&idle) {
        return Ok(Diagnosis::warning(
            "timeouts",
            format!("idle_session_timeout is {idle} ms: connections are often made anew"),
            "ALTER ROLE ... SET idle_session_timeout = 0, for the role that locks",
        ));
    }
    Ok(Diagnosis::good("timeouts", "none that is in the way of requests"))
}

/// What the tokens of a table tell, with `advice` for when they are ahead.
pub(super) fn clock(
    tokens: Result<Vec<PgRow>, Failure>,
    table: &str,
    advice: &'static str,
) -> Diagnosis {
    let ahead = tokens.and_then(|rows| match rows.first() {
        Some(row) => Ok(row.try_get::<Option<i64>, _>("ahead")?.unwrap_or(0)),
        None => Ok(0),
    });
    match ahead {
        Err(failure) => Diagnosis::warning(
            "clock",
            format!("whether tokens are ahead of the server's clock cannot be seen: {failure}"),
            format!("look with a user who may read the table {table}"),
        ),
        Ok(ahead @ FAR_AHEAD..) => Diagnosis::warning(
            "clock",
            format!(
                "tokens are {} s ahead of the server's clock: it was set back, or was wrong",
                ahead / 1_000_000
            ),
            advice,
        ),
        Ok(_) => {
            Diagnosis::good("clock", "tokens of the namespace are not ahead of the server's clock")
        }
    }
}

pub(super) fn connections(row: &PgRow) -> Result<Diagnosis, Failure> {
    let most: i64 = row.try_get("most_connections")?;
    let used: i64 = row.try_get("connections")?;
    let found = format!("{used} of {most} connections are in use");
    Ok(match used * 10 < most * 9 {
        true => Diagnosis::good("connections", found),
        false => Diagnosis::warning(
            "connections",
            found,
            "raise max_connections, or find out who keeps so many",
        ),
    })
}

fn pooler(driver: &PostgresDriver) -> Diagnosis {
    match driver.connections.are_pooled() {
        false => Diagnosis::good("pooler", "none was noticed that pools transactions"),
        true => Diagnosis::warning(
            "pooler",
            "a pooler gives each transaction another session: waiters hear no news and poll",
            "connect to the server itself, or let the pooler pool sessions",
        ),
    }
}

fn vacuum(row: &PgRow) -> Result<Diagnosis, Failure> {
    let dead: i64 = row.try_get("dead_rows")?;
    if !row.try_get::<bool, _>("is_vacuumed")? {
        return Ok(Diagnosis::warning(
            "vacuum",
            "autovacuum is off: the tables of locks grow without end",
            "set autovacuum = on, also for the tables lockkit_lock and lockkit_place",
        ));
    }
    Ok(match dead {
        MANY_DEAD_ROWS.. => Diagnosis::warning(
            "vacuum",
            format!("{dead} dead rows in the tables of locks: vacuum does not keep up"),
            "end old transactions (pg_stat_activity), then VACUUM lockkit_lock, lockkit_place",
        ),
        _ => Diagnosis::good("vacuum", "the tables of locks are vacuumed"),
    })
}

pub(super) fn news(row: &PgRow) -> Result<Diagnosis, Failure> {
    let used: f64 = row.try_get("news_queue")?;
    Ok(match used {
        ..0.5 => Diagnosis::good("news", "the server's queue of notifications has room"),
        _ => Diagnosis::warning(
            "news",
            format!("the server's queue of notifications is {:.0} % full", used * 100.0),
            "end the transaction of the session that listens and does not read",
        ),
    })
}
