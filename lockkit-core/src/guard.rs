use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::driven::Driven;
use crate::hold::Hold;
use crate::tenure::{Phase, Tenure, Untold};
use crate::{Error, Lease, Operation, Result, keeper};

/// Proof that a lock is held, until it is dropped or the hold is lost.
///
/// Dropping it, on any thread, with or without a runtime, releases the lock. That does not block: a
/// task of the locker's runtime does the release. [`release`](Self::release) also tells how it
/// went. A runtime that ends drops its tasks: at the end of a program, await
/// [`release`](Self::release) or [`Locker::shutdown`](crate::Locker::shutdown), or the lock may
/// stay taken until its lease is over.
///
/// A guard that is [forgotten](std::mem::forget) keeps its lock renewed for as long as the locker's
/// runtime lives; a [maximum hold](Lease::max_hold) bounds that.
///
/// A guard can be moved to the task that does the work, and dereferences to its [`Hold`].
///
/// ```
/// # use lockkit_core::{Locker, memory::MemoryDriver};
/// # async fn resize() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locker = Locker::new(MemoryDriver::new());
/// let guard = locker.lock("images/42")?.acquire().await?;
/// let task = tokio::spawn(async move {
///     tokio::select! {
///         () = resize() => guard.release().await,
///         // Stops at once, since somebody else may begin. The guard tells that it was lost.
///         () = guard.lost() => guard.release().await,
///     }
/// });
/// task.await??;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    seat: Arc<Seat>,
}

impl LockGuard {
    /// The hold, to hand to the work that the lock protects.
    pub fn hold(&self) -> Hold {
        self.seat.0.clone()
    }

    /// Returns once the hold is lost: at the latest when it can no longer be vouched for, or within
    /// a second of a suspended machine waking up after that. It never returns without cause.
    ///
    /// It needs a [runtime of the locker](crate::Locker) that runs; [`is_held`](Hold::is_held) does
    /// not.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is consumed.
    pub async fn lost(&self) {
        // Nothing else ends the hold while this guard exists.
        self.ended().await;
    }

    /// Releases the lock and returns when it is free. Of several guards of one
    /// [`Owner`](crate::Owner), only the last one releases.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the hold had already ended, so that somebody else may
    /// have held the lock meanwhile.
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if the backend does not answer within the
    /// driver's limit for one request, and whatever else the driver reports, such as a right that
    /// was taken away: the release is then repeated in the background, and the lease runs out at
    /// the latest. The work under the lock was done alone all the same, and is not to be repeated
    /// for such an error; [`run`](Self::run) makes that difference.
    ///
    /// [`Error::ShutDown`](crate::Error::ShutDown) if the locker's runtime ended meanwhile, and the
    /// release with it: the lease runs out at the latest.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if it is dropped at any point, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        let hold = self.hold();
        // Not by a glance: no answer that follows need tell of a suspension.
        if !hold.tenure.is_held() {
            return Err(hold.lost_error());
        }
        let Some(seat) = Arc::into_inner(self.seat) else { return Ok(()) };
        // Tells those who watch even if nobody drives the release any more when this is dropped.
        let _told = Untold(&hold.tenure);
        let retired = Driven::new(&hold.tenure.engine, |caller| keeper::retire(seat, caller));
        retired.await.unwrap_or_else(|none| {
            Err(match hold.tenure.glance().phase {
                // It stood when it was given up.
                Phase::Released => {
                    let (engine, name) = (&hold.tenure.engine, Some(hold.name()));
                    engine.no_report_error(none, Operation::Release, name)
                }
                _ => hold.lost_error(),
            })
        })
    }

    /// A copy of the descriptor that keeps the hold, for another process to inherit, as with
    /// flock(1): from now on the lock is free only when this guard is released and the last copy is
    /// closed. `None` if no descriptor keeps the hold, which is the case wherever the hold does not
    /// end with its [process](crate::Liveness::Process).
    ///
    /// The copy is closed on `exec`, like all descriptors, unless whoever hands it on changes that.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the hold has ended; otherwise whatever the driver
    /// reports, and the hold is then as it was.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a copy that nobody fetches is closed.
    pub async fn descriptor(&self) -> Result<Option<OwnedFd>> {
        if !self.is_held() {
            return Err(self.lost_error());
        }
        let tenure = Arc::clone(&self.tenure);
        let copied = async move { tenure.engine.driver.descriptor(&tenure.claim).await };
        self.tenure.engine.request(Operation::Share, Some(self.name()), copied).await
    }

    /// Does `work` under the hold, and releases the lock: [`Lock::run`](crate::Lock::run) for a lock
    /// that is held already. When the hold is lost, the work is dropped at its next await.
    ///
    /// A release that fails is no failure of the work, which is done: it is repeated in the
    /// background, and the outcome is that of the work.
    ///
    /// ```
    /// # use lockkit_core::{Locker, memory::MemoryDriver};
    /// # use std::time::Duration;
    /// # async fn resize() {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let guard = locker.lock("images/42")?.acquire_timeout(Duration::from_secs(3)).await?;
    /// // Goes on, whatever becomes of whoever waited for the lock.
    /// let task = tokio::spawn(guard.run(async |_| resize().await));
    /// task.await??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the hold ended before the lock was released, so that
    /// others may have held the lock, too. The work may have finished all the same: what it returned
    /// is then dropped. [`Error::ShutDown`](crate::Error::ShutDown) if that was because the locker
    /// was shut down.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped at any point, the work is dropped and the lock released.
    pub async fn run<T, F>(self, work: impl FnOnce(Hold) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let hold = self.hold();
        let done = tokio::select! {
            biased;
            () = hold.ended() => None,
            done = work(self.hold()) => Some(done),
        };
        let done = done.filter(|_| hold.is_held());
        let released = self.release().await;
        let done = done.ok_or_else(|| hold.end_error())?;
        match released {
            // It ended at the last moment; or the backend knows that it had ended before.
            Err(Error::Lost { .. }) if hold.tenure.glance().phase == Phase::Lost => {
                return Err(hold.end_error());
            }
            Err(error @ Error::Lost { .. }) => return Err(error),
            Err(error) => {
                let (lock, owner) = (hold.name(), hold.owner());
                tracing::warn!(%lock, %owner, %error, "done, and not released yet");
            }
            Ok(()) => (),
        }
        Ok(done)
    }

    pub(crate) fn new(tenure: Arc<Tenure>) -> Self {
        Self::seated(Arc::new(Seat(Hold { tenure })))
    }

    pub(crate) fn seated(seat: Arc<Seat>) -> Self {
        Self { seat }
    }

    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Deref for LockGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.seat.0
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("LockGuard", f)
    }
}

/// A guard whose lease can be lengthened on demand.
///
/// ```
/// # use lockkit_core::{AcquireOptions, Lease, Locker, Renew, memory::MemoryDriver};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// # let locker = Locker::new(MemoryDriver::new());
/// // Whoever works on a part has ten seconds for it, and none if it hangs.
/// let lease = Lease::new(Duration::from_secs(10)).renew(Renew::Never);
/// let lock = locker.lock("import")?.leased(lease)?;
/// let guard = lock.acquire_leased(AcquireOptions::new()).await?;
/// for part in 0..3 {
///     guard.extend(Duration::from_secs(10)).await?;
///     println!("importing part {part}");
/// }
/// guard.release().await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LeasedGuard {
    guard: LockGuard,
}

impl LeasedGuard {
    /// Makes the hold last for `ttl` from now, but no shorter than it already does, and no longer
    /// than its [maximum](Lease::max_hold). A lease that is renewed is renewed for this length from
    /// then on.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the hold has ended;
    /// [`Error::Config`](crate::Error::Config) if the driver cannot keep such a lease; otherwise
    /// whatever the driver reports, and the hold then lasts as long as it did.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: if it is dropped at any point, the request goes on in the background, and may
    /// or may not lengthen the lease.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        extend(self, ttl).await
    }

    /// Does `work` under the hold, as [`LockGuard::run`] does, and lets it lengthen the lease.
    ///
    /// ```
    /// # use lockkit_core::{AcquireOptions, Lease, Locker, Renew, memory::MemoryDriver};
    /// # use std::time::Duration;
    /// # async fn import(part: u32) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// // A part that takes longer is dropped.
    /// const PART: Duration = Duration::from_secs(10);
    /// let lock = locker.lock("import")?.leased(Lease::new(PART).renew(Renew::Never))?;
    /// let guard = lock.acquire_leased(AcquireOptions::new()).await?;
    /// let imported = guard.run(async |hold| {
    ///     for part in 0..3 {
    ///         hold.extend(PART).await?;
    ///         import(part).await;
    ///     }
    ///     Ok(())
    /// });
    /// imported.await?
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::run`].
    pub async fn run<T, F>(self, work: impl FnOnce(LeasedHold) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        self.guard.run(|hold| work(LeasedHold { hold })).await
    }

    /// Releases the lock, as [`LockGuard::release`] does.
    ///
    /// # Errors
    ///
    /// Same as [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LockGuard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    pub(crate) fn new(guard: LockGuard) -> Self {
        Self { guard }
    }
}

/// For code that takes any guard. The hold goes on.
impl From<LeasedGuard> for LockGuard {
    fn from(leased: LeasedGuard) -> Self {
        leased.guard
    }
}

impl Deref for LeasedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

/// A look at a hold whose lease can be lengthened on demand. Like a [`Hold`], to which it
/// dereferences, it does not keep the lock held. [`LeasedGuard::run`] makes one.
#[derive(Clone, Debug)]
pub struct LeasedHold {
    hold: Hold,
}

impl LeasedHold {
    /// Makes the hold last for `ttl` from now, as [`LeasedGuard::extend`] does.
    ///
    /// # Errors
    ///
    /// Same as [`LeasedGuard::extend`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`LeasedGuard::extend`].
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        extend(&self.hold, ttl).await
    }
}

impl Deref for LeasedHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

async fn extend(hold: &Hold, ttl: Duration) -> Result<()> {
    let tenure = &hold.tenure;
    let engine = &tenure.engine;
    Lease::new(ttl).check(engine.driver.id(), &engine.driver.capabilities())?;
    if !tenure.is_held() {
        return Err(hold.lost_error());
    }
    let extended = Driven::new(engine, |caller| keeper::extend(Arc::clone(tenure), ttl, caller));
    extended.await.unwrap_or_else(|none| {
        Err(match tenure.is_held() {
            true => engine.no_report_error(none, Operation::Renew, Some(hold.name())),
            false => hold.lost_error(),
        })
    })
}

/// What the guards of one hold share: when the last one goes, so does the hold.
#[derive(Debug)]
pub(crate) struct Seat(Hold);

impl Seat {
    pub(crate) fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Ends the hold if it was held until now, and leaves it to the caller to release it and to
    /// [tell](Tenure::tell) of that.
    pub(crate) fn vacate(self) -> Option<Arc<Tenure>> {
        let tenure = &self.0.tenure;
        tenure.end_quietly(Phase::Released).then(|| Arc::clone(tenure))
    }
}

impl Drop for Seat {
    /// Tells the keeper, which is a task of the locker's runtime.
    fn drop(&mut self) {
        self.0.tenure.end(Phase::Dropped);
    }
}
