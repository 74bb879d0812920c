use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    AcquireOptions, Capabilities, Error, Hold, Lease, LeasedGuard, LockGuard, LockName, Owner,
    Result, Wait,
};

pub(crate) mod private {
    pub trait Sealed {}
}

/// A lock, whatever backend is behind it.
///
/// A function that takes `&dyn DistributedLock` works with every backend. An `Arc` or a `Box` of a lock
/// is a lock, too. The everyday methods are in [`LockExt`]. Only lockkit implements these traits, so that they can grow; backends
/// implement [`Driver`](crate::driver::Driver).
#[async_trait]
pub trait DistributedLock: private::Sealed + Debug + Send + Sync + 'static {
    /// The name of this lock.
    fn name(&self) -> &LockName;

    /// What the driver behind this lock promises.
    fn capabilities(&self) -> Capabilities;

    /// Acquires the lock as `options` say; see [`Lock::acquire_with`](crate::Lock::acquire_with).
    ///
    /// # Errors
    ///
    /// Same as [`Lock::acquire_with`](crate::Lock::acquire_with).
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lock::acquire_with`](crate::Lock::acquire_with).
    async fn acquire_with(&self, options: AcquireOptions) -> Result<LockGuard>;
}

/// A lock that an [`Owner`] can acquire again while holding it. Every lock can be acquired in this
/// way; see [`Lock::acquire_as`](crate::Lock::acquire_as) for an example.
#[async_trait]
pub trait ReentrantLock: DistributedLock {
    /// Acquires the lock for `owner`, or shares the hold that `owner` already has; see
    /// [`Lock::acquire_as`](crate::Lock::acquire_as).
    ///
    /// # Errors
    ///
    /// Same as [`Lock::acquire_as`](crate::Lock::acquire_as).
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lock::acquire_as`](crate::Lock::acquire_as).
    async fn acquire_as(&self, owner: &Owner, options: AcquireOptions) -> Result<LockGuard>;

    /// How many guards of this lock `owner` has.
    fn depth(&self, owner: &Owner) -> usize;
}

/// A lock that serves its waiters first come, first served. [`Lock::fair`](crate::Lock::fair) makes
/// one.
///
/// ```
/// # use lockkit_core::{self as lockkit, FairLock, LockExt as _, Locker, memory::MemoryDriver};
/// // Whoever came first buys first: with another kind of lock this is not compiled.
/// async fn sell(tickets: &dyn FairLock) -> lockkit::Result<()> {
///     tickets.acquire().await?.release().await
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// # let locker = Locker::new(MemoryDriver::new());
///
/// sell(&locker.lock("tickets")?.fair()?).await
/// # }
/// ```
pub trait FairLock: DistributedLock {}

/// A lock whose holds end with a lease. [`Lock::leased`](crate::Lock::leased) makes one; see
/// [`LeasedGuard`] for an example.
#[async_trait]
pub trait LeasedLock: DistributedLock {
    /// The lease of this lock's holds.
    fn lease(&self) -> Lease;

    /// Acquires the lock with a guard that can be extended.
    ///
    /// # Errors
    ///
    /// Same as [`Lock::acquire_with`](crate::Lock::acquire_with).
    ///
    /// # Cancel safety
    ///
    /// Same as [`Lock::acquire`](crate::Lock::acquire).
    async fn acquire_leased(&self, options: AcquireOptions) -> Result<LeasedGuard>;
}

/// The everyday methods of [`Lock`](crate::Lock) for every lock, even behind `dyn`.
///
/// ```
/// # use lockkit_core as lockkit;
/// use lockkit::{DistributedLock, LockExt as _};
///
/// async fn tidy_up(lock: &dyn DistributedLock) -> lockkit::Result<()> {
///     match lock.try_acquire().await? {
///         Some(guard) => guard.release().await,
///         None => Ok(()), // somebody else does it
///     }
/// }
/// ```
pub trait LockExt: DistributedLock {
    /// See [`Lock::acquire`](crate::Lock::acquire).
    fn acquire(&self) -> impl Future<Output = Result<LockGuard>> + Send {
        self.acquire_with(AcquireOptions::new())
    }

    /// See [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    fn acquire_timeout(
        &self,
        patience: Duration,
    ) -> impl Future<Output = Result<LockGuard>> + Send {
        self.acquire_with(AcquireOptions::new().wait(Wait::AtMost(patience)))
    }

    /// See [`Lock::try_acquire`](crate::Lock::try_acquire).
    fn try_acquire(&self) -> impl Future<Output = Result<Option<LockGuard>>> + Send {
        async {
            match self.acquire_with(AcquireOptions::new().wait(Wait::No)).await {
                Err(Error::Taken { .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        }
    }

    /// See [`Lock::run`](crate::Lock::run).
    fn run<T, F>(
        &self,
        work: impl FnOnce(Hold) -> F + Send,
    ) -> impl Future<Output = Result<T>> + Send
    where
        T: Send,
        F: Future<Output = T> + Send,
    {
        self.run_with(AcquireOptions::new(), work)
    }

    /// See [`Lock::run_with`](crate::Lock::run_with).
    fn run_with<T, F>(
        &self,
        options: AcquireOptions,
        work: impl FnOnce(Hold) -> F + Send,
    ) -> impl Future<Output = Result<T>> + Send
    where
        T: Send,
        F: Future<Output = T> + Send,
    {
        async move { self.acquire_with(options).await?.run(work).await }
    }

    /// See [`Lock::run_as`](crate::Lock::run_as).
    fn run_as<T, F>(
        &self,
        owner: &Owner,
        options: AcquireOptions,
        work: impl FnOnce(Hold) -> F + Send,
    ) -> impl Future<Output = Result<T>> + Send
    where
        Self: ReentrantLock,
        T: Send,
        F: Future<Output = T> + Send,
    {
        async move { self.acquire_as(owner, options).await?.run(work).await }
    }
}

impl<L: DistributedLock + ?Sized> LockExt for L {}
