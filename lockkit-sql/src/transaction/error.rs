use std::fmt;
use std::time::Duration;

use lockkit_core::{FencingToken, LockName};

/// Why something inside a transaction failed. Each message names the database, and the lock or
/// resource.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction has the lock, and the caller would not wait. The transaction is
    /// unharmed.
    #[error("lock `{name}` is taken ({database})")]
    #[non_exhaustive]
    Taken {
        /// Which lock.
        name: LockName,
        /// In which database.
        database: &'static str,
    },
    /// Another transaction had the lock for as long as the caller would wait. The transaction is
    /// unharmed.
    #[error("lock `{name}` was not acquired within {waited:?} ({database})")]
    #[non_exhaustive]
    TimedOut {
        /// Which lock.
        name: LockName,
        /// In which database.
        database: &'static str,
        /// How long the caller would wait.
        waited: Duration,
    },
    /// A later holder has been here: nothing of this transaction may take effect. Roll it back,
    /// and do not try again.
    #[error("fencing token {token} is stale: {highest} was at `{resource}` already ({database})")]
    #[non_exhaustive]
    Stale {
        /// What the token is for.
        resource: LockName,
        /// In which database.
        database: &'static str,
        /// The token that was refused.
        token: FencingToken,
        /// The highest token so far.
        highest: FencingToken,
    },
    /// Somebody changed the row after it was read: see [`Changed`].
    #[error(transparent)]
    Changed(#[from] Changed),
    /// The transaction met another one and was given up: a deadlock, or a snapshot that is out of
    /// date. Roll it back, whatever is left of it, and do all of it again, as
    /// [`retry`](super::retry) does.
    #[error(transparent)]
    Conflict(Failure),
    /// The tables are not there, or are those of another lockkit: see
    /// [`create_tables`](super::create_tables).
    #[error(transparent)]
    NotSetUp(Failure),
    /// Whatever else the database or the connection to it said. Roll the transaction back.
    #[error(transparent)]
    Database(Failure),
}

impl Error {
    /// What a failed statement means.
    pub(super) fn of(
        database: &'static str,
        operation: Operation,
        name: Option<&LockName>,
        source: sqlx::Error,
    ) -> Self {
        let meaning = super::meaning(&source);
        let failure = Failure { database, operation, name: name.cloned(), source };
        match meaning {
            Meaning::Conflict => Self::Conflict(failure),
            Meaning::NotSetUp => Self::NotSetUp(failure),
            Meaning::Other => Self::Database(failure),
        }
    }
}

/// What the database's answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The transaction met another one.
    Conflict,
    /// Tables or functions are missing.
    NotSetUp,
    Other,
}

/// What failed, and where.
#[non_exhaustive]
#[derive(Debug)]
pub struct Failure {
    /// In which database.
    pub database: &'static str,
    /// Doing what.
    pub operation: Operation,
    /// With which lock or resource; `None` if it was about the tables.
    pub name: Option<LockName>,
    /// What the database or its client said.
    pub source: sqlx::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} could not {}", self.database, self.operation)?;
        match &self.name {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// What was attempted.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Making or checking the tables.
    CreateTables,
    /// Taking a [row lock](super::row_lock).
    LockRow,
    /// Taking an [advisory lock](super::postgres::xact_lock).
    LockTransaction,
    /// Passing a [gate](super::gate).
    PassGate,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreateTables => "make the tables of transactions",
            Self::LockRow => "lock the row of",
            Self::LockTransaction => "take the advisory lock",
            Self::PassGate => "pass the gate of",
        })
    }
}

/// An update by key and version did not change exactly one row: somebody has changed or removed the
/// row since it was read, which is the conflict of optimistic locking.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// How many rows the update changed instead. Several are not a conflict, but mean that the
    /// condition does not name one row: roll back.
    pub rows_affected: u64,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows_affected {
            0 => f.write_str("the row was changed since it was read"),
            several => write!(f, "an update of one row by key and version changed {several}"),
        }
    }
}

impl std::error::Error for Changed {}

/// Makes sure that an update found the row as it was read: that it changed exactly one row.
///
/// For an update whose condition names one row by its key and the version that was read, and that
/// raises the version: `UPDATE … SET …, version = version + 1 WHERE id = … AND version = …`.
///
/// ```
/// # use lockkit_sql::transaction::as_read;
/// assert_eq!(as_read(1), Ok(()));
/// assert_eq!(as_read(0).unwrap_err().to_string(), "the row was changed since it was read");
/// ```
///
/// # Errors
///
/// [`Changed`] if it did not. If it changed no row, [`retry`](super::retry) reads again.
pub fn as_read(rows_affected: u64) -> Result<(), Changed> {
    match rows_affected {
        1 => Ok(()),
        rows_affected => Err(Changed { rows_affected }),
    }
}
