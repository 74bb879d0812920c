use std::error::Error as StdError;
use std::time::Duration;

use lockkit_core::BoxError;
use sqlx::{Pool, Transaction};

use super::error::Meaning;
use super::{Changed, Database, Error};

/// The pause after the first conflict lasts up to this long, after each further one up to twice as
/// long, and never longer than the other.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(200);

/// Does `work`, a whole transaction, again for as long as it meets others, up to `attempts` times
/// in all and at least once.
///
/// Pauses between attempts are random and grow to 0.2 s, so that two who met do not meet again.
/// `work` has to [begin], to read what it decides by, and to commit, each time. Where the
/// connection broke during a commit, whether it took place is unknown, and nothing is tried again.
///
/// # Errors
///
/// The first error of `work` that [is no conflict](Retryable::is_conflict), or the last one.
///
/// # Cancel safety
///
/// As `work`. With [`begin`] at its beginning nothing is left behind: a transaction that is dropped
/// is rolled back once the statement that it is at has ended; a waiting one ends with the wait.
/// Dropped during the commit, it may be committed or not.
pub async fn retry<T, E, F>(attempts: u32, mut work: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: Retryable,
{
    let mut longest = SHORTEST;
    let mut left = attempts;
    loop {
        left = left.saturating_sub(1);
        match work().await {
            Err(error) if error.is_conflict() && left > 0 => {
                tracing::debug!(left, "a transaction met another one and is tried again");
                tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
                longest = LONGEST.min(longest * 2);
            }
            outcome => return outcome,
        }
    }
}

/// Begins a transaction on a connection of `pool`, as [`Pool::begin`] does, in a way that may be
/// dropped.
///
/// With SQLite the transaction is immediate: from its beginning to its end there is no other
/// writer, and it never finds out only when it writes that another one was first.
///
/// # Errors
///
/// As [`Pool::begin`].
///
/// # Cancel safety
///
/// Cancel-safe. [`Pool::begin`] of sqlx 0.9 is not: what it leaves on the connection, for whoever
/// gets it next, is an open transaction
/// ([sqlx 4385](https://github.com/launchbadge/sqlx/issues/4385)).
pub async fn begin<DB: Database>(pool: &Pool<DB>) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let pool = pool.clone();
    // Goes on to the end if nobody waits for it, and is rolled back then.
    let beginning = tokio::spawn(async move { pool.begin_with(DB::BEGIN).await });
    beginning.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// An error that tells whether its transaction met another one, so that doing all of it again may
/// succeed.
///
/// For an error type of one's own, hand on what the parts say:
///
/// ```
/// use lockkit_sql::transaction::{self, Retryable, sqlx};
///
/// #[derive(Debug, thiserror::Error)]
/// enum OrderError {
///     #[error("sold out")]
///     SoldOut,
///     #[error(transparent)]
///     Lock(#[from] transaction::Error),
///     #[error(transparent)]
///     Database(#[from] sqlx::Error),
/// }
///
/// impl Retryable for OrderError {
///     fn is_conflict(&self) -> bool {
///         match self {
///             Self::SoldOut => false,
///             Self::Lock(error) => error.is_conflict(),
///             Self::Database(error) => error.is_conflict(),
///         }
///     }
/// }
/// # assert!(!OrderError::SoldOut.is_conflict());
/// # let changed = transaction::Error::from(transaction::as_read(0).unwrap_err());
/// # assert!(OrderError::from(changed).is_conflict());
/// ```
pub trait Retryable {
    /// Whether it is a deadlock, a failure to serialize, a busy SQLite, or a row that [`Changed`].
    fn is_conflict(&self) -> bool;
}

impl Retryable for Error {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict(_) => true,
            Self::Changed(changed) => changed.is_conflict(),
            _ => false,
        }
    }
}

impl Retryable for Changed {
    fn is_conflict(&self) -> bool {
        self.rows_affected == 0
    }
}

impl Retryable for sqlx::Error {
    fn is_conflict(&self) -> bool {
        super::meaning(self) == Meaning::Conflict
    }
}

/// What one of the others says that it is, or has among its sources. An error that is "transparent"
/// hides the one that it is made of.
impl Retryable for BoxError {
    fn is_conflict(&self) -> bool {
        let first: &(dyn StdError + 'static) = &**self;
        std::iter::successors(Some(first), |&error| error.source()).any(|error| {
            error.downcast_ref().is_some_and(Changed::is_conflict)
                || error.downcast_ref().is_some_and(Error::is_conflict)
                || error.downcast_ref().is_some_and(sqlx::Error::is_conflict)
        })
    }
}
