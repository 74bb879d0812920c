//! Makes the tables, and refuses what is not ours.

use lockkit_core::driver::ErrorKind;
use sqlx::Row as _;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Duration, sleep};

use super::error::Failure;

const LAYOUT: &str = include_str!("sql/layout.sql");
const OBJECTS: &str = include_str!("sql/objects.sql");
const VERSIONS: &str = "SELECT MAX(version) AS version FROM lockkit_layout";

const VERSION: i32 = 1;

/// The columns of our tables, as `objects.sql` finds them.
const TABLES: [(&str, &str); 5] = [
    (
        "lockkit_bell",
        "namespace varbinary(64) not null key, name varbinary(512) not null key, \
         inbox bigint not null key, since bigint not null, told bigint not null, \
         expires bigint not null",
    ),
    ("lockkit_layout", "only_row tinyint not null key, version int not null"),
    (
        "lockkit_lock",
        "namespace varbinary(64) not null key, name varbinary(512) not null key, \
         owner varbinary(32), label varbinary(128), token bigint not null, \
         since bigint not null, lease bigint not null, expires bigint not null, \
         queued bigint not null, awaited bigint not null, beat bigint not null, settled bigint not null",
    ),
    (
        "lockkit_place",
        "namespace varbinary(64) not null key, name varbinary(512) not null key, \
         owner varbinary(32) not null key, label varbinary(128) not null, \
         inbox bigint not null, arrival bigint not null, since bigint not null, expires bigint not null",
    ),
    (
        "lockkit_session",
        "locked varbinary(64) not null key, namespace varbinary(64) not null, \
         name varbinary(512) not null, owner varbinary(32) not null, \
         label varbinary(128) not null, session varbinary(32) not null, since bigint not null, \
         token bigint not null",
    ),
];

/// The tables that leases and sessions need. A user that has no right to a table does not see it.
pub(super) const OF_LEASES: &[&str] =
    &["lockkit_layout", "lockkit_lock", "lockkit_place", "lockkit_bell"];
pub(super) const OF_SESSIONS: &[&str] = &["lockkit_layout", "lockkit_session"];

/// Makes sure that the tables are ours; where there are none, makes them. Many processes may do
/// this at once.
pub(super) async fn prepare(
    connection: &mut MySqlConnection,
    needed: &[&str],
) -> Result<(), Failure> {
    const PAUSE: Duration = Duration::from_millis(20);
    while !check(connection, needed).await? {
        let made = sqlx::raw_sql(LAYOUT).execute(&mut *connection).await;
        match made.map_err(Failure::from) {
            // Somebody else is making them. Connecting has a time limit.
            Err(failure) if failure.is_conflict() || failure.is_impatience() => sleep(PAUSE).await,
            made => _ = made.map_err(explain)?,
        }
    }
    Ok(())
}

/// Whether the tables are there, and ours.
async fn check(connection: &mut MySqlConnection, needed: &[&str]) -> Result<bool, Failure> {
    let objects = sqlx::raw_sql(OBJECTS).fetch_all(&mut *connection).await?;
    let mut missing = needed.to_vec();
    let mut altered = Vec::new();
    for object in &objects {
        let (name, made_of): (&str, &str) = (object.try_get("name")?, object.try_get("made_of")?);
        missing.retain(|expected| *expected != name);
        // Other engines keep no rows locked, or nothing across a crash.
        if !TABLES.contains(&(name, made_of)) || object.try_get::<&str, _>("engine")? != "InnoDB" {
            altered.push(name);
        }
    }
    let is_versioned = !missing.contains(&"lockkit_layout") && !altered.contains(&"lockkit_layout");
    let version = if is_versioned { version(connection).await? } else { None };
    match version {
        Some(other) if other != VERSION => Err(Failure::found(
            ErrorKind::Misconfigured,
            format!("the tables have layout version {other}; this lockkit knows version {VERSION}"),
        )),
        _ if !altered.is_empty() => Err(Failure::found(
            ErrorKind::Foreign,
            format!("tables are not as lockkit made them: {}", altered.join(", ")),
        )),
        Some(_) if !missing.is_empty() => Err(Failure::found(
            ErrorKind::Foreign,
            format!(
                "tables are not there any more, or this user has no right to them: {}",
                missing.join(", ")
            ),
        )),
        // Without a version, whoever began to make the tables has not finished.
        version => Ok(version.is_some()),
    }
}

async fn version(connection: &mut MySqlConnection) -> Result<Option<i32>, Failure> {
    let row = sqlx::raw_sql(VERSIONS).fetch_one(connection).await?;
    Ok(row.try_get("version")?)
}

/// Says what to do when a right is missing.
fn explain(failure: Failure) -> Failure {
    match failure.number() {
        Some(1044 | 1142) => Failure::found(
            ErrorKind::Denied,
            format!(
                "the tables are not there yet, and this user may not make them ({failure}): let one \
                 connect once who may, and grant rights as docs/mysql.md says"
            ),
        ),
        _ => failure,
    }
}
