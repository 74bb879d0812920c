mod promises;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::Instrument as _;

pub use self::promises::{AnyEnd, AnyOrder, Fifo, Leased};
use crate::driven::Driven;
use crate::driver::Claim;
use crate::engine::Engine;
use crate::owner::Behind;
use crate::traits::{DistributedLock, ReentrantLock, private::Sealed};
use crate::{
    AcquireOptions, Capabilities, Error, Hold, Label, Lease, Liveness, LockGuard, LockName,
    Operation, Owner, Result, Wait, keeper, meter,
};

/// A named lock. It holds nothing until it is acquired, and is cheap to clone.
///
/// Two acquisitions exclude each other even when they come from the same `Lock`, unless they are
/// made [as one owner](Self::acquire_as).
///
/// `Order` and `Ends` are promises that a function can ask for by type: see [`fair`](Self::fair)
/// and [`leased`](Self::leased).
///
/// ```
/// # use lockkit_core::{Error, Locker, memory::MemoryDriver};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// # let locker = Locker::new(MemoryDriver::new());
/// let lock = locker.lock("orders/42")?;
/// match lock.acquire_timeout(Duration::from_secs(3)).await {
///     Ok(guard) => {
///         println!("this is done by nobody else, with token {:?}", guard.fencing_token());
///         guard.release().await?;
///     }
///     Err(Error::TimedOut { .. }) => println!("somebody else is at it"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
pub struct Lock<Order = AnyOrder, Ends = AnyEnd> {
    engine: Arc<Engine>,
    name: LockName,
    lease: Lease,
    label: Label,
    fair: bool,
    promises: PhantomData<fn() -> (Order, Ends)>,
}

impl<O: 'static, E: 'static> Lock<O, E> {
    /// The name of this lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// What the driver behind this lock promises.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.driver.capabilities()
    }

    /// The same lock, whose holders and waiters are called something else than those of
    /// [its locker](crate::LockerBuilder::label) where locks are [looked at](crate::Locker::look).
    ///
    /// ```
    /// # use lockkit_core::{Locker, memory::MemoryDriver};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let lock = locker.lock("orders/42")?.labelled("request 7f3a".parse()?);
    /// let guard = lock.acquire().await?;
    /// let seen = locker.look("orders/42").await?;
    /// assert_eq!(seen.holder().unwrap().label().unwrap().as_str(), "request 7f3a");
    /// # guard.release().await }
    /// ```
    #[must_use]
    pub fn labelled(self, label: Label) -> Self {
        Self { label, ..self }
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the backend gives no answer at all for the length of a lease;
    /// [`Error::ShutDown`] if the [locker](crate::Locker) was shut down or its runtime has ended;
    /// [`Error::Config`] if there is no runtime to use; and whatever else the driver reports. See
    /// [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped at any point, the future leaves neither a hold nor a place in a queue.
    /// A future that is neither polled nor dropped keeps what it is granted.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.acquire_with(AcquireOptions::new()).await
    }

    /// Acquires the lock, waiting no longer than `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if the lock was taken for that long, or if the backend did not answer
    /// for that long and `patience` is shorter than a lease; otherwise the same as
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, patience: Duration) -> Result<LockGuard> {
        self.acquire_with(AcquireOptions::new().wait(Wait::AtMost(patience))).await
    }

    /// Acquires the lock if that is possible at once; `None` if somebody else holds it, or waits for
    /// it in a queue. Over a majority of servers, several who ask at once may all get `None`, and with
    /// ZooKeeper so may some who ask just when the lock is released: if one of them has to get the
    /// lock, use [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// This sends one request, bounded by the driver's limit for a single request: a fifth of the
    /// lease, at most 3 seconds, unless the URL has a `call_limit`. Over several servers, it is one
    /// for each, and Redlock's `node_timeout` bounds it instead; where a URL of Redis demands
    /// `replicas`, waiting for those has a limit of its own.
    ///
    /// Bind the guard: with `if lock.try_acquire().await?.is_some() { … }` the lock is released
    /// before the block begins.
    ///
    /// ```
    /// # use lockkit_core::{Locker, memory::MemoryDriver};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let Some(guard) = locker.lock("nightly-report")?.try_acquire().await? else {
    ///     return Ok(()); // another instance writes it
    /// };
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the backend does not answer; otherwise the same as
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        match self.acquire_with(AcquireOptions::new().wait(Wait::No)).await {
            Err(Error::Taken { .. }) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Acquires the lock as `options` say; see [`AcquireOptions`] for an example.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`] with [`Wait::No`]; [`Error::Unsupported`] and [`Error::Config`] for a
    /// [lease](AcquireOptions::ttl) that the driver cannot keep; otherwise the same as
    /// [`acquire`](Self::acquire) and [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_with(&self, options: AcquireOptions) -> Result<LockGuard> {
        self.acquire_behind(options, None).await
    }

    /// [`acquire_with`](Self::acquire_with), perhaps behind others of the same owner.
    pub(crate) async fn acquire_behind(
        &self,
        options: AcquireOptions,
        behind: Option<Behind>,
    ) -> Result<LockGuard> {
        let engine = &self.engine;
        engine.check_running()?;
        let lease = match options.ttl {
            Some(ttl) if self.capabilities().liveness == Liveness::Lease => {
                let lease = self.lease.with_ttl(ttl);
                lease.check(engine.driver.id(), &self.capabilities())?;
                lease
            }
            Some(_) => {
                let what = format!(
                    "a lease for each acquisition: holds end with the {}",
                    self.capabilities().liveness
                );
                return Err(Error::unsupported(engine.driver.id(), what));
            }
            None => self.lease,
        };
        let (label, clock) = (self.label.clone(), engine.clock.clone());
        let claim = Claim::by(label, clock, self.name.clone(), lease.ttl());
        let claim = match options.wait {
            Wait::No => claim,
            Wait::AtMost(patience) if patience.is_zero() => claim,
            _ if self.fair => claim.fair(),
            _ => claim.waiting(),
        };
        let span = tracing::debug_span!(
            "lock",
            name = %self.name,
            driver = engine.driver.id(),
            owner = %claim.owner(),
        );
        let metered = meter::Acquisition::begin(engine, &self.name);
        let acquiring = Driven::new(engine, |caller| {
            keeper::keep(Arc::clone(engine), claim, options.wait, lease, behind, caller)
                .instrument(span)
        });
        let acquired = acquiring.await;
        let acquired = acquired.unwrap_or_else(|none| {
            Err(engine.no_report_error(none, Operation::Acquire, Some(&self.name)))
        });
        metered.end(&acquired);
        acquired
    }

    /// Acquires the lock for `owner`, or shares the hold that `owner` already has. Sharing sends no
    /// request, and ignores what `options` say about the lease. The lock is released with the last
    /// guard.
    ///
    /// While one acquisition of `owner` is under way, its other acquisitions wait for that one,
    /// even if nobody polls it any more: drop such a future. An acquisition with [`Wait::No`] does
    /// not wait, and is told that the lock is taken.
    ///
    /// ```
    /// # use lockkit_core::{self as lockkit, AcquireOptions, Lock, Locker, Owner, memory::MemoryDriver};
    /// async fn pay(account: &Lock, owner: &Owner) -> lockkit::Result<()> {
    ///     let guard = account.acquire_as(owner, AcquireOptions::new()).await?;
    ///     // Has the lock already, for the same owner.
    ///     note(account, owner).await?;
    ///     guard.release().await
    /// }
    ///
    /// async fn note(account: &Lock, owner: &Owner) -> lockkit::Result<()> {
    ///     let guard = account.acquire_as(owner, AcquireOptions::new()).await?;
    ///     // ...
    ///     guard.release().await
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let account = Locker::new(MemoryDriver::new()).lock("account/7")?;
    ///
    /// let owner = Owner::new();
    /// pay(&account, &owner).await?;
    /// note(&account, &owner).await?;
    /// # assert_eq!(account.depth(&owner), 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] while there are still guards of a hold that `owner` has lost; otherwise the
    /// same as [`acquire_with`](Self::acquire_with).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_as(&self, owner: &Owner, options: AcquireOptions) -> Result<LockGuard> {
        owner.acquire(self, options).await
    }

    /// How many guards of this lock `owner` has.
    pub fn depth(&self, owner: &Owner) -> usize {
        owner.depth(self)
    }

    /// Acquires the lock, waiting for as long as it takes, does `work`, and releases the lock.
    ///
    /// When the hold is lost, the work is dropped at its next await. The work gets a [`Hold`], for
    /// the fencing token, and to hand to whatever it spawns, which is not dropped with it.
    ///
    /// What the work returns is passed through: if the work can fail, the outcome is a result in a
    /// result. Work that acquires the same lock in its turn waits for itself, unless it does so as
    /// the same owner: see [`run_as`](Self::run_as).
    ///
    /// ```
    /// # use lockkit_core::{Hold, Locker, memory::MemoryDriver};
    /// async fn report(hold: Hold) -> std::io::Result<u32> {
    ///     // ...
    /// #   Ok(7)
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locker = Locker::new(MemoryDriver::new());
    ///
    /// let pages = locker.lock("nightly-report")?.run(report).await??;
    /// # assert_eq!(pages, 7);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold ended before the lock was released, so that others may have held
    /// the lock, too. The work may have finished all the same: what it returned is then dropped.
    /// [`Error::ShutDown`] if that was because the locker was shut down. Otherwise the same as
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire); the work is dropped with the future.
    pub async fn run<T, F>(&self, work: impl FnOnce(Hold) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        self.run_with(AcquireOptions::new(), work).await
    }

    /// Like [`run`](Self::run), acquiring as `options` say.
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run) and [`acquire_with`](Self::acquire_with).
    ///
    /// # Cancel safety
    ///
    /// Same as [`run`](Self::run).
    pub async fn run_with<T, F>(
        &self,
        options: AcquireOptions,
        work: impl FnOnce(Hold) -> F,
    ) -> Result<T>
    where
        F: Future<Output = T>,
    {
        self.acquire_with(options).await?.run(work).await
    }

    /// Like [`run_with`](Self::run_with), acquiring [for `owner`](Self::acquire_as): work of an
    /// owner that has the lock already is begun at once, and the lock stays held after it.
    ///
    /// ```
    /// # use lockkit_core::{self as lockkit, AcquireOptions, Lock, Locker, Owner, memory::MemoryDriver};
    /// async fn pay(account: &Lock, owner: &Owner) -> lockkit::Result<()> {
    ///     account.run_as(owner, AcquireOptions::new(), async |_| note(account, owner).await).await?
    /// }
    ///
    /// async fn note(account: &Lock, owner: &Owner) -> lockkit::Result<()> {
    ///     account.run_as(owner, AcquireOptions::new(), async |_| println!("paid")).await
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let account = Locker::new(MemoryDriver::new()).lock("account/7")?;
    ///
    /// pay(&account, &Owner::new()).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run) and [`acquire_as`](Self::acquire_as).
    ///
    /// # Cancel safety
    ///
    /// Same as [`run`](Self::run).
    pub async fn run_as<T, F>(
        &self,
        owner: &Owner,
        options: AcquireOptions,
        work: impl FnOnce(Hold) -> F,
    ) -> Result<T>
    where
        F: Future<Output = T>,
    {
        self.acquire_as(owner, options).await?.run(work).await
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, name: LockName, lease: Lease) -> Self {
        let label = engine.label.clone();
        Self { engine, name, lease, label, fair: false, promises: PhantomData }
    }
}

impl<O, E> Sealed for Lock<O, E> {}

#[async_trait]
impl<O: 'static, E: 'static> DistributedLock for Lock<O, E> {
    fn name(&self) -> &LockName {
        self.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities()
    }

    async fn acquire_with(&self, options: AcquireOptions) -> Result<LockGuard> {
        self.acquire_with(options).await
    }
}

#[async_trait]
impl<O: 'static, E: 'static> ReentrantLock for Lock<O, E> {
    async fn acquire_as(&self, owner: &Owner, options: AcquireOptions) -> Result<LockGuard> {
        self.acquire_as(owner, options).await
    }

    fn depth(&self, owner: &Owner) -> usize {
        self.depth(owner)
    }
}

impl<O, E> Clone for Lock<O, E> {
    fn clone(&self) -> Self {
        let Self { engine, name, lease, label, fair, promises } = self;
        let (engine, name, label) = (Arc::clone(engine), name.clone(), label.clone());
        Self { engine, name, lease: *lease, label, fair: *fair, promises: *promises }
    }
}

impl<O, E> fmt::Debug for Lock<O, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("driver", &self.engine.driver.id())
            .field("lease", &self.lease)
            .field("fair", &self.fair)
            .finish_non_exhaustive()
    }
}
