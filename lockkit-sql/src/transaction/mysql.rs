//! What is special about MySQL and MariaDB.

use std::time::Duration;

use lockkit_core::{FencingToken, LockName, Wait};
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{Connection as _, MySql, Row as _};
use tokio::time::{Instant, sleep};

use super::backend;
use super::error::Meaning;

const TABLES: &str = include_str!("sql/mysql.sql");

impl super::Database for MySql {}
impl super::RowLocks for MySql {}

impl backend::Database for MySql {
    const BEGIN: &'static str = "BEGIN";

    async fn create_tables(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        if connection.is_in_transaction() {
            let text = "a transaction is open, and MySQL would commit it to make the tables";
            return Err(sqlx::Error::Configuration(text.into()));
        }
        // A dump may have left the procedure out.
        let are_there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM information_schema.tables \
             WHERE table_schema = database() AND table_name = 'lockkit_transaction_layout') \
             AND EXISTS (SELECT 1 FROM information_schema.routines \
             WHERE routine_schema = database() AND routine_name = 'lockkit_row_lock')",
        )
        .fetch_one(&mut *connection)
        .await?;
        // The version is written last: without one, somebody is still making the tables, or gave
        // up.
        if !are_there || Self::version(connection).await?.is_none() {
            sqlx::raw_sql(TABLES).execute(&mut *connection).await?;
        }
        // Where the session does not commit by itself, the version would stay locked, or be lost.
        sqlx::raw_sql("COMMIT").execute(connection).await?;
        Ok(())
    }

    async fn version(connection: &mut MySqlConnection) -> Result<Option<i32>, sqlx::Error> {
        sqlx::query_scalar("SELECT max(version) FROM lockkit_transaction_layout")
            .fetch_one(connection)
            .await
    }

    async fn pass_gate(
        connection: &mut MySqlConnection,
        resource: &LockName,
        token: FencingToken,
    ) -> Result<i64, sqlx::Error> {
        // The highest token comes with the answer, unless the row is new: then it is 0.
        let done = sqlx::query(
            "INSERT INTO lockkit_gate (namespace, resource, token) VALUES (?, ?, ?) \
             ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, VALUES(token)))",
        )
        .bind(resource.namespace().as_str().as_bytes())
        .bind(resource.as_str().as_bytes())
        .bind(i64::from(token))
        .execute(connection)
        .await?;
        match done.last_insert_id() {
            0 => Ok(i64::from(token)),
            highest => i64::try_from(highest).map_err(|error| sqlx::Error::Decode(error.into())),
        }
    }
}

impl backend::RowLocks for MySql {
    async fn row_lock(
        connection: &mut MySqlConnection,
        name: &LockName,
        wait: Wait,
    ) -> Result<bool, sqlx::Error> {
        /// The server counts in whole seconds; the fraction that is left is spent asking this
        /// often.
        const PAUSE: Duration = Duration::from_millis(10);
        let (patience, rest) = match wait {
            Wait::No => (0, Duration::ZERO),
            Wait::AtMost(limit) => {
                (limit.as_secs().min(FOR_EVER), Duration::from_nanos(limit.subsec_nanos().into()))
            }
            _ => (FOR_EVER, Duration::ZERO),
        };
        if ask(connection, name, patience).await? {
            return Ok(true);
        }
        let deadline = Instant::now() + rest;
        while Instant::now() < deadline {
            sleep(PAUSE.min(deadline - Instant::now())).await;
            if ask(connection, name, 0).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The greatest `innodb_lock_wait_timeout` that MariaDB accepts: three years.
const FOR_EVER: u64 = 100_000_000;

async fn ask(
    connection: &mut MySqlConnection,
    name: &LockName,
    patience: u64,
) -> Result<bool, sqlx::Error> {
    let rows = sqlx::query("CALL lockkit_row_lock(?, ?, ?)")
        .bind(name.namespace().as_str().as_bytes())
        .bind(name.as_str().as_bytes())
        .bind(patience)
        // All of the answer, so that nothing of it is left on the connection.
        .fetch_all(&mut *connection)
        .await;
    let rows = match rows {
        Err(error @ sqlx::Error::Database(_)) => {
            put_back(connection).await;
            return Err(error);
        }
        rows => rows?,
    };
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("is_locked")
}

/// Puts the session's time-out back if a procedure that was killed has left it changed.
async fn put_back(connection: &mut MySqlConnection) {
    let put_back = sqlx::raw_sql(
        "SET SESSION innodb_lock_wait_timeout = CAST( \
             COALESCE(@lockkit_before, @@SESSION.innodb_lock_wait_timeout) AS SIGNED), \
         @lockkit_before = NULL",
    );
    if let Err(error) = put_back.execute(connection).await {
        tracing::debug!(%error, "a session's innodb_lock_wait_timeout was not put back");
    }
}

pub(super) fn meaning(error: &MySqlDatabaseError) -> Meaning {
    match (error.number(), error.code()) {
        // A row that changed since the snapshot, where the server looks.
        (1020, _) => Meaning::Conflict,
        // A deadlock, or a snapshot that our procedure refused.
        (_, Some("40001")) => Meaning::Conflict,
        (1146 | 1305, _) => Meaning::NotSetUp,
        _ => Meaning::Other,
    }
}
