//! Locks inside the user's own transaction: the lock ends together with what the transaction does.
//!
//! Where the data that a lock protects is in one database, no lease is needed: let the database
//! that commits the effects keep the lock, too. Then nothing can run out between the check and the
//! write. There are three ways, all within a transaction of [sqlx] that you have begun:
//!
//! - **Pessimistic**: [`row_lock`], and [`postgres::xact_lock`]. Others wait until this transaction
//!   has ended.
//! - **Optimistic**: a version column, an update that finds the row [`as_read`], and [`retry`].
//!   Nobody waits; whoever comes second does it again.
//! - **A gate** for the effects of the holder of any lockkit lock: [`gate`] refuses a fencing token
//!   that is lower than the highest seen, so that a holder that was overtaken changes nothing.
//!
//! ```no_run
//! use lockkit_core::{LockName, Namespace, Wait};
//! use lockkit_sql::transaction::{self, BoxError, row_lock, sqlx};
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), BoxError> {
//! transaction::create_tables(&mut *pool.acquire().await?).await?; // once, or by a migration
//!
//! let name = LockName::new(&Namespace::default(), "orders/42")?;
//! transaction::retry(10, || async {
//!     let mut tx = transaction::begin(&pool).await?;
//!     row_lock(&mut tx, &name, Wait::Forever).await?;
//!     sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *tx).await?;
//!     tx.commit().await?;
//!     Ok::<_, BoxError>(())
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! | | PostgreSQL | MySQL, MariaDB | SQLite |
//! | --- | --- | --- | --- |
//! | [`row_lock`] | yes | yes | no: it has one writer, which [`begin`] makes you |
//! | [`postgres::xact_lock`] | yes | no | no |
//! | [`as_read`], [`begin`], [`retry`] | yes | yes | yes |
//! | [`gate`] | yes | yes | yes |
//!
//! `docs/transactions.md` says when to use which, and what is stored.

mod error;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod retry;
#[cfg(feature = "sqlite")]
mod sqlite;

use lockkit_core::{FencingToken, LockName, Wait};
use sqlx::Transaction;

pub use error::{Changed, Error, Failure, Operation, as_read};
pub use lockkit_core::BoxError;
pub use retry::{Retryable, begin, retry};
/// The client whose transactions these are.
pub use sqlx;

use error::Meaning;

/// The version of the tables that this lockkit knows.
const VERSION: i32 = 1;

/// A database whose transactions lockkit joins. Not to be implemented elsewhere.
pub trait Database: backend::Database {}

/// A database that locks single rows. Not to be implemented elsewhere.
pub trait RowLocks: Database + backend::RowLocks {}

/// Locks the row of `name` in a table of lockkit's own, until the transaction ends.
///
/// This takes one round trip, except that MySQL and MariaDB count waits in whole seconds: for the
/// rest of one they are asked again and again. The row is made if it is missing, and stays. Waiters
/// are served in the database's order, which is about the order of arrival. Locking again what the
/// transaction has locked succeeds; rolling back to a savepoint may give up the locks that were
/// taken since, and does with PostgreSQL.
///
/// Lock first, then read: what was read before may be out of date. A transaction with an isolation
/// level above `READ COMMITTED` whose snapshot is older than the last lock gets [`Error::Conflict`]
/// instead of reading what is out of date; with PostgreSQL, that is whenever it had to wait.
///
/// A wait lasts as long as `wait` says, whatever time-outs are set for locks in the session, and
/// the settings of the session stay as they are. PostgreSQL counts two waits separately: the one
/// for the place at the head of the queue, and the one for the row. The shortest wait of MySQL, but
/// not of MariaDB, is one second.
///
/// # Errors
///
/// [`Error::Taken`] for [`Wait::No`] and [`Error::TimedOut`] for [`Wait::AtMost`], which leave the
/// transaction unharmed; [`Error::Conflict`] for a deadlock; and whatever else [`Error`] lists.
///
/// # Cancel safety
///
/// Not cancel-safe: it is then unknown whether the transaction has the lock, and the transaction is
/// to be dropped as well. sqlx rolls it back once the statement has ended; a statement that waits
/// does not end before its wait is over.
pub async fn row_lock<DB: RowLocks>(
    transaction: &mut Transaction<'_, DB>,
    name: &LockName,
    wait: Wait,
) -> Result<(), Error> {
    match <DB as backend::RowLocks>::row_lock(transaction, name, wait).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused(DB::NAME, name, wait)),
        Err(error) => Err(Error::of(DB::NAME, Operation::LockRow, Some(name), error)),
    }
}

/// Refuses a fencing token that is lower than the highest that `resource` has seen; otherwise
/// remembers the token.
///
/// This is one statement, whose row stays locked until the transaction ends: of two holders whose
/// transactions meet, the one with the higher token comes last or alone. Call it first in every
/// transaction whose effects the lock is to protect. A new holder that reads before it writes is
/// made safe by that, too: from its gate on, nothing of an earlier holder is committed.
///
/// The token is remembered if the transaction commits. For a lock, the resource usually has the
/// lock's name, as [`DistributedLock::name`](lockkit_core::DistributedLock::name) returns it.
///
/// # Errors
///
/// [`Error::Stale`] if a later holder has been here: roll back. [`Error::Conflict`] for a deadlock,
/// or for a later holder that commits meanwhile where the isolation level is above
/// `READ COMMITTED`; and whatever else [`Error`] lists.
///
/// # Cancel safety
///
/// Not cancel-safe, like [`row_lock`].
pub async fn gate<DB: Database>(
    transaction: &mut Transaction<'_, DB>,
    resource: &LockName,
    token: FencingToken,
) -> Result<(), Error> {
    let failed = |error| Error::of(DB::NAME, Operation::PassGate, Some(resource), error);
    let highest = DB::pass_gate(transaction, resource, token).await.map_err(failed)?;
    let highest = FencingToken::try_from(highest).map_err(|_| {
        failed(sqlx::Error::Decode("a number in the gate is no fencing token".into()))
    })?;
    match highest > token {
        true => {
            Err(Error::Stale { resource: resource.clone(), database: DB::NAME, token, highest })
        }
        false => Ok(()),
    }
}

/// Makes the tables that [`row_lock`], [`postgres::xact_lock`] and [`gate`] use, unless they are
/// there. However many callers do this at once, the tables are made once.
///
/// This is never done in passing, since it takes rights that everyday transactions do not need, and
/// since MySQL commits what is open when a table is made. Do it when the application starts, or
/// have your migrations run the SQL that `docs/transactions.md` names.
///
/// # Errors
///
/// [`Error::NotSetUp`] if there are tables of another lockkit; [`Error::Database`] for what the
/// database says, and for a MySQL connection on which a transaction is open.
///
/// # Cancel safety
///
/// Not cancel-safe: if this is cancelled, close the connection. The next call completes what this
/// one has begun.
pub async fn create_tables<C>(connection: &mut C) -> Result<(), Error>
where
    C: sqlx::Connection,
    C::Database: Database<Connection = C>,
{
    let database = <C::Database as sqlx::Database>::NAME;
    let failed = |error| Error::of(database, Operation::CreateTables, None, error);
    <C::Database as backend::Database>::create_tables(connection).await.map_err(failed)?;
    let version = <C::Database as backend::Database>::version(connection);
    match version.await.map_err(failed)? {
        Some(VERSION) => Ok(()),
        found => {
            let found = match found {
                Some(version) => format!("layout version {version}"),
                None => "no layout version".into(),
            };
            let text = format!("the tables have {found}; this lockkit knows version {VERSION}");
            Err(Error::NotSetUp(Failure {
                database,
                operation: Operation::CreateTables,
                name: None,
                source: sqlx::Error::Configuration(text.into()),
            }))
        }
    }
}

/// What each database does in its own way; private, so that it may change.
mod backend {
    use lockkit_core::{FencingToken, LockName, Wait};

    pub trait Database: sqlx::Database {
        const BEGIN: &'static str;

        fn create_tables(
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

        /// The layout version that the tables have; `None` if they do not say.
        fn version(
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<Option<i32>, sqlx::Error>> + Send;

        /// Returns the highest token that has been here, this one included.
        fn pass_gate(
            connection: &mut Self::Connection,
            resource: &LockName,
            token: FencingToken,
        ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
    }

    pub trait RowLocks: Database {
        /// Whether the row was locked in time.
        fn row_lock(
            connection: &mut Self::Connection,
            name: &LockName,
            wait: Wait,
        ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
    }
}

fn refused(database: &'static str, name: &LockName, wait: Wait) -> Error {
    match wait {
        Wait::AtMost(waited) => Error::TimedOut { name: name.clone(), database, waited },
        _ => Error::Taken { name: name.clone(), database },
    }
}

/// What the error says about the transaction, if it is an answer of the server's.
fn meaning(error: &sqlx::Error) -> Meaning {
    let sqlx::Error::Database(answer) = error else { return Meaning::Other };
    #[cfg(feature = "postgres")]
    if let Some(answer) = answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return postgres::meaning(answer.code());
    }
    #[cfg(feature = "mysql")]
    if let Some(answer) = answer.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return mysql::meaning(answer);
    }
    #[cfg(feature = "sqlite")]
    if let Some(answer) = answer.try_downcast_ref::<sqlx::sqlite::SqliteError>() {
        return sqlite::meaning(answer);
    }
    _ = answer;
    Meaning::Other
}
