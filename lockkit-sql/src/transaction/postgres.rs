//! What only PostgreSQL has.

use std::time::Duration;

use lockkit_core::{FencingToken, LockName, Wait};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Postgres, Row as _, Transaction};

use super::error::{Meaning, Operation};
use super::{Error, backend, refused};

const TABLES: &str = include_str!("sql/postgres.sql");

/// Held by whoever makes the tables: "lktx".
const MAKING: i64 = 0x6c6b_7478;

impl super::Database for Postgres {}
impl super::RowLocks for Postgres {}

/// Takes the advisory lock of `name`, until the transaction ends.
///
/// It needs no row, which makes it the cheaper of the two kinds of lock. But it takes room in the
/// server's lock table, and knows nothing of snapshots: with an isolation level other than
/// `READ COMMITTED`, what the transaction reads after waiting may be older than what the last
/// transaction that had the lock did. Take a [row lock](super::row_lock) there.
///
/// The key is the first 64 bits, as a big-endian number, of [`LockName::digest`]. Two names with
/// the same key, which is most unlikely, keep each other out. Advisory locks that sessions hold
/// have other keys.
///
/// A transaction is granted a lock that it already has. Rolling back to a savepoint gives up the
/// locks that were taken since.
///
/// # Errors
///
/// [`Error::Taken`] and [`Error::TimedOut`], which leave the transaction unharmed;
/// [`Error::Conflict`] for a deadlock; and whatever else [`Error`] lists.
///
/// # Cancel safety
///
/// Not cancel-safe, like [`row_lock`](super::row_lock).
pub async fn xact_lock(
    transaction: &mut Transaction<'_, Postgres>,
    name: &LockName,
    wait: Wait,
) -> Result<(), Error> {
    let [a, b, c, d, e, f, g, h, ..] = name.digest();
    let is_locked = sqlx::query_scalar("SELECT lockkit_xact_lock($1, $2)")
        .bind(i64::from_be_bytes([a, b, c, d, e, f, g, h]))
        .bind(patience(wait))
        .fetch_one(&mut **transaction)
        .await;
    match is_locked {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused(NAME, name, wait)),
        Err(error) => Err(Error::of(NAME, Operation::LockTransaction, Some(name), error)),
    }
}

const NAME: &str = <Postgres as sqlx::Database>::NAME;

impl backend::Database for Postgres {
    const BEGIN: &'static str = "BEGIN";

    async fn create_tables(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let mut transaction = connection.begin().await?;
        // CREATE TABLE IF NOT EXISTS fails where two do it at once.
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .persistent(false)
            .bind(MAKING)
            .execute(&mut *transaction)
            .await?;
        let are_there: bool =
            sqlx::query_scalar("SELECT to_regclass('lockkit_transaction_layout') IS NOT NULL")
                .persistent(false)
                .fetch_one(&mut *transaction)
                .await?;
        if !are_there {
            sqlx::raw_sql(TABLES).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    async fn version(connection: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
        sqlx::query_scalar("SELECT max(version) FROM lockkit_transaction_layout")
            .fetch_one(connection)
            .await
    }

    async fn pass_gate(
        connection: &mut PgConnection,
        resource: &LockName,
        token: FencingToken,
    ) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(
            "INSERT INTO lockkit_gate AS g (namespace, resource, token) VALUES ($1, $2, $3) \
             ON CONFLICT (namespace, resource) \
             DO UPDATE SET token = greatest(g.token, excluded.token) RETURNING token",
        )
        .bind(resource.namespace().as_str())
        .bind(resource.as_str())
        .bind(i64::from(token))
        .fetch_one(connection)
        .await
    }
}

impl backend::RowLocks for Postgres {
    async fn row_lock(
        connection: &mut PgConnection,
        name: &LockName,
        wait: Wait,
    ) -> Result<bool, sqlx::Error> {
        let row = sqlx::query("SELECT lockkit_row_lock($1, $2, $3)")
            .bind(name.namespace().as_str())
            .bind(name.as_str())
            .bind(patience(wait))
            .fetch_one(connection)
            .await?;
        row.try_get(0)
    }
}

/// The wait in milliseconds, rounded up; `None` if it never ends.
fn patience(wait: Wait) -> Option<i32> {
    match wait {
        Wait::No => Some(0),
        Wait::AtMost(limit) => {
            i32::try_from(limit.as_nanos().div_ceil(Duration::from_millis(1).as_nanos())).ok()
        }
        _ => None,
    }
}

pub(super) fn meaning(code: &str) -> Meaning {
    match code {
        "40001" | "40P01" => Meaning::Conflict,
        "42P01" | "42883" => Meaning::NotSetUp,
        _ => Meaning::Other,
    }
}
