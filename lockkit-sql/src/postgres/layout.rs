//! Makes the tables and functions, and refuses what is not ours.

use lockkit_core::driver::ErrorKind;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};

use super::error::Failure;

const LAYOUT: &str = include_str!("sql/layout.sql");
const STATE: &str = include_str!("sql/state.sql");
const OBJECTS: &str = include_str!("sql/objects.sql");
/// What is set here ends with the request, or with the transaction that it is part of.
const LAYOUT_VERSION: &str =
    "SET LOCAL lock_timeout = 1000; SELECT max(version) AS version FROM lockkit_layout";
/// Those who wait for whoever makes the tables give up before their clients do.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 3000";

const VERSION: i32 = 1;

/// Held by whoever makes the tables: "lkit".
const MAKING: i64 = 0x6c6b_6974;

/// The columns and the keys of our tables, as `objects.sql` finds them.
const TABLES: [(&str, &str, &str); 4] = [
    (
        "lockkit_layout",
        "only_row boolean NOT NULL DEFAULT, version integer NOT NULL",
        "PRIMARY KEY (only_row)",
    ),
    (
        "lockkit_lock",
        "namespace text NOT NULL, name text NOT NULL, owner text, label text, token bigint NOT NULL, \
         since bigint NOT NULL, lease bigint NOT NULL, expires bigint NOT NULL, \
         beat bigint NOT NULL",
        "PRIMARY KEY (namespace, name)",
    ),
    (
        "lockkit_place",
        "namespace text NOT NULL, name text NOT NULL, owner text NOT NULL, label text NOT NULL, \
         inbox text NOT NULL, turn smallint NOT NULL, arrival bigint NOT NULL IDENTITY, \
         since bigint NOT NULL, lease bigint NOT NULL, expires bigint NOT NULL",
        "PRIMARY KEY (owner)",
    ),
    (
        "lockkit_session",
        "key bigint NOT NULL, namespace text NOT NULL, name text NOT NULL, owner text, label text, \
         token bigint NOT NULL, since bigint NOT NULL, pid integer, awaited bigint NOT NULL",
        "PRIMARY KEY (key)",
    ),
];

const FUNCTIONS: [&str; 18] = [
    "lockkit_begin",
    "lockkit_break",
    "lockkit_first_place",
    "lockkit_hand_over",
    "lockkit_let_go",
    "lockkit_listens",
    "lockkit_now",
    "lockkit_release",
    "lockkit_renew",
    "lockkit_renew_together",
    "lockkit_session_break",
    "lockkit_session_release",
    "lockkit_session_status",
    "lockkit_session_sweep",
    "lockkit_session_take",
    "lockkit_stay",
    "lockkit_sweep",
    "lockkit_take",
];

/// Makes sure that the tables are ours; where there are none, makes them. However many processes do
/// this at once, only one makes them.
pub(super) async fn prepare(connection: &mut PgConnection) -> Result<(), Failure> {
    if !check(connection).await? {
        make(connection).await?;
    }
    Ok(())
}

async fn make(connection: &mut PgConnection) -> Result<(), Failure> {
    // A process that had to wait sees what was made meanwhile.
    let mut transaction = connection.begin_with(BEGIN).await?;
    // CREATE TABLE IF NOT EXISTS fails where two do it at once.
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .persistent(false)
        .bind(MAKING)
        .execute(&mut *transaction)
        .await?;
    if !check(&mut transaction).await? {
        sqlx::raw_sql(LAYOUT).execute(&mut *transaction).await.map_err(explain)?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Whether the tables are there, and ours.
pub(super) async fn check(connection: &mut PgConnection) -> Result<bool, Failure> {
    let row = sqlx::raw_sql(STATE).fetch_one(&mut *connection).await?;
    if row.try_get::<Option<&str>, _>("schema")?.is_none() {
        let text = "the schema is not there, or this user may not use it: CREATE SCHEMA makes it";
        return Err(Failure::found(ErrorKind::Misconfigured, text));
    }
    if !row.try_get::<bool, _>("are_there")? {
        return Ok(false);
    }
    let row = sqlx::raw_sql(LAYOUT_VERSION).fetch_one(&mut *connection).await?;
    match row.try_get::<Option<i32>, _>("version")? {
        Some(VERSION) => (),
        Some(other) => {
            return Err(Failure::found(
                ErrorKind::Misconfigured,
                format!(
                    "the tables have layout version {other}; this lockkit knows version {VERSION}"
                ),
            ));
        }
        None => {
            return Err(Failure::found(ErrorKind::Foreign, "the table lockkit_layout is empty"));
        }
    }
    let objects = sqlx::raw_sql(OBJECTS).fetch_all(&mut *connection).await?;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for object in &objects {
        let name = object.try_get("name")?;
        let (made_of, works_by) = (object.try_get("made_of")?, object.try_get("works_by")?);
        let is_function = function(name) == Some((made_of, works_by));
        match is_function || TABLES.contains(&(name, made_of, works_by)) {
            true => ours.push(name),
            false => others.push(name),
        }
    }
    let names = FUNCTIONS.into_iter().chain(TABLES.map(|(table, ..)| table));
    // If one is there twice, with other arguments, a call may mean the other.
    let strange: Vec<&str> =
        names.filter(|name| !ours.contains(name) || others.contains(name)).collect();
    if !strange.is_empty() {
        return Err(Failure::found(
            ErrorKind::Foreign,
            format!("tables or functions are not as lockkit made them: {}", strange.join(", ")),
        ));
    }
    Ok(true)
}

/// The body of a function of ours, and its attributes.
fn function(name: &str) -> Option<(&'static str, &'static str)> {
    let is_it =
        |function: &&str| function.strip_prefix(name).is_some_and(|rest| rest.starts_with('('));
    let function = LAYOUT.split("CREATE FUNCTION ").find(is_it)?;
    let (head, rest) = function.split_once(" AS $$")?;
    let (_, attributes) = head.split_once("LANGUAGE ")?;
    let (body, _) = rest.split_once("$$")?;
    Some((body, attributes))
}

/// Says what to do when a right is missing.
fn explain(error: sqlx::Error) -> Failure {
    let denied = error.as_database_error().and_then(|error| error.code()) == Some("42501".into());
    match denied {
        true => Failure::found(
            ErrorKind::Denied,
            format!(
                "the tables are not there yet, and this user may not make them ({error}): let one \
                 connect once who may, and grant rights as docs/postgres.md says"
            ),
        ),
        false => error.into(),
    }
}
