use std::error::Error as StdError;
use std::time::Duration;

use lockkit_core::BoxError;
use sqlx::{Pool, Transaction};

use super::error::Meaning;
use super::{Changed, Database, Error};

/// The pause after the first conflict lasts up to `SHORTEST`, and after each further one up to
/// twice as long as before, but never longer than `LONGEST`.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(200);

/// Does `work`, a whole transaction, and does it again as long as it meets others, up to `attempts`
/// times in all and at least once.
///
/// Pauses between attempts are random and grow to 0.2 s, so that two that met do not meet again.
/// Each time, `work` has to [begin], to read what it decides by, and to commit. If the connection
/// breaks during a commit, it is unknown whether the commit took place, and nothing is tried again.
///
/// # Errors
///
/// The first error of `work` that [is not a conflict](Retryable::is_conflict), or the last one.
///
/// # Cancel safety
///
/// As `work`. If that starts with [`begin`], nothing is left behind: a transaction that is dropped
/// is rolled back once its current statement has ended, and one that waits ends with the wait. A
/// transaction that is dropped during the commit may be committed or not.
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

/// Begins a transaction on a connection of `pool`, as [`Pool::begin`] does, but in a way that may
/// be dropped.
///
/// With SQLite, the transaction is immediate: there is no other writer from its beginning to its
/// end, and it never finds out only when it writes that another one was first.
///
/// # Errors
///
/// Those of [`Pool::begin`].
///
/// # Cancel safety
///
/// Cancel-safe. [`Pool::begin`] of sqlx 0.9 is not: if it is dropped, it leaves an open transaction
/// on the connection, for whoever gets that next
/// ([sqlx 4385](https://github.com/launchbadge/sqlx/issues/4385)).
pub async fn begin<DB: Database>(pool: &Pool<DB>) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let pool = pool.clone();
    // Goes on to the end even if nobody waits for it, and is then rolled back.
    let beginning = tokio::spawn(async move { pool.begin_with(DB::BEGIN).await });
    beginning.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// An error that tells whether its transaction met another one, so that doing all of it again may
/// succeed.
///
/// For an error type of your own, pass on what the parts say:
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
    /// Whether it is a deadlock, a serialization failure, a busy SQLite database, or a row that
    /// [`Changed`].
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

/// A conflict if the error, or one of its sources, is of one of the other types here and says that
/// it is a conflict. An error that is "transparent" hides the one that it is made of.
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
