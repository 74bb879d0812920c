//! What is special about SQLite: it has one writer at a time, and so no row locks.

use lockkit_core::{FencingToken, LockName};
use sqlx::Connection as _;
use sqlx::error::DatabaseError as _;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteError};

use super::backend;
use super::error::Meaning;

const TABLES: &str = include_str!("sql/sqlite.sql");

impl super::Database for Sqlite {}

impl backend::Database for Sqlite {
    /// A transaction that begins by reading cannot write once another one has written.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    async fn create_tables(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut transaction = match connection.is_in_transaction() {
            true => connection.begin().await?,
            false => connection.begin_with(Self::BEGIN).await?,
        };
        let are_there: bool = sqlx::query_scalar(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'lockkit_transaction_layout'",
        )
        .fetch_one(&mut *transaction)
        .await?;
        if !are_there {
            sqlx::raw_sql(TABLES).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    async fn version(connection: &mut SqliteConnection) -> Result<Option<i32>, sqlx::Error> {
        sqlx::query_scalar("SELECT max(version) FROM lockkit_transaction_layout")
            .fetch_one(connection)
            .await
    }

    async fn pass_gate(
        connection: &mut SqliteConnection,
        resource: &LockName,
        token: FencingToken,
    ) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(
            "INSERT INTO lockkit_gate (namespace, resource, token) VALUES (?, ?, ?) \
             ON CONFLICT DO UPDATE SET token = max(token, excluded.token) RETURNING token",
        )
        .bind(resource.namespace().as_str())
        .bind(resource.as_str())
        .bind(i64::from(token))
        .fetch_one(connection)
        .await
    }
}

pub(super) fn meaning(error: &SqliteError) -> Meaning {
    // The primary result code (<https://www.sqlite.org/rescode.html>).
    let code = error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff);
    match code {
        Some(BUSY | LOCKED) => Meaning::Conflict,
        Some(ERROR) if error.message().starts_with("no such table: lockkit_") => Meaning::NotSetUp,
        _ => Meaning::Other,
    }
}

const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6; // the same, between connections that share a cache
