//! What a lock promises by its type, so that a function can ask for it.

use std::marker::PhantomData;

use async_trait::async_trait;

use super::Lock;
use crate::traits::{FairLock, LeasedLock};
use crate::{AcquireOptions, Error, Fairness, Lease, LeasedGuard, Liveness, Result};

/// Waiters are served in whatever order the driver has.
#[derive(Debug)]
#[non_exhaustive]
pub struct AnyOrder;

/// Waiters are served first come, first served.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fifo;

/// Holds that nobody releases end in whatever way the driver ends them.
#[derive(Debug)]
#[non_exhaustive]
pub struct AnyEnd;

/// Holds that nobody releases end with a lease.
#[derive(Debug)]
#[non_exhaustive]
pub struct Leased;

impl<O: 'static, E: 'static> Lock<O, E> {
    /// The same lock, with its acquisitions served first come, first served.
    ///
    /// ```
    /// # use lockkit_core::{Fifo, Lock, Locker, memory::MemoryDriver};
    /// # fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let lock: Lock<Fifo> = locker.lock("tickets")?.fair()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver keeps no order.
    pub fn fair(self) -> Result<Lock<Fifo, E>> {
        match self.capabilities().fairness {
            Fairness::Fifo | Fairness::OnRequest => {
                let Self { engine, name, lease, label, .. } = self;
                Ok(Lock { engine, name, lease, label, fair: true, promises: PhantomData })
            }
            Fairness::Unordered => {
                let what = "serving waiters in order, as it is used here";
                Err(Error::unsupported(self.engine.driver.id(), what))
            }
        }
    }

    /// The same lock with another lease. If that has no [maximum](Lease::max_hold), it has that of
    /// the lease before, as the locker or its URL may have set it.
    ///
    /// ```
    /// # use lockkit_core::{Lease, Leased, Lock, Locker, memory::MemoryDriver};
    /// # use std::time::Duration;
    /// # fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// // Free again two minutes after its holder died, and an hour after the grant at the latest.
    /// let lease = Lease::new(Duration::from_secs(120)).max_hold(Duration::from_secs(3600));
    /// let lock: Lock<_, Leased> = locker.lock("nightly-report")?.leased(lease)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver's holds end with something other than a lease;
    /// [`Error::Config`] if the driver cannot keep a lease of this length, or if the lease's
    /// `max_hold` is zero.
    pub fn leased(self, lease: Lease) -> Result<Lock<O, Leased>> {
        let (driver, can) = (self.engine.driver.id(), self.capabilities());
        if can.liveness != Liveness::Lease {
            let what = format!("a lease for each lock: holds end with the {}", can.liveness);
            return Err(Error::unsupported(driver, what));
        }
        lease.check(driver, &can)?;
        let Self { engine, name, lease: before, label, fair, .. } = self;
        let lease = lease.or_max_hold(before.longest_hold());
        Ok(Lock { engine, name, lease, label, fair, promises: PhantomData })
    }
}

impl<O: 'static> Lock<O, Leased> {
    /// The lease of this lock's holds.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Acquires the lock with a guard that can be [extended](LeasedGuard::extend).
    ///
    /// # Errors
    ///
    /// Same as [`acquire_with`](Self::acquire_with).
    ///
    /// # Cancel safety
    ///
    /// Same as [`acquire`](Self::acquire).
    pub async fn acquire_leased(&self, options: AcquireOptions) -> Result<LeasedGuard> {
        Ok(LeasedGuard::new(self.acquire_with(options).await?))
    }
}

impl<E: 'static> FairLock for Lock<Fifo, E> {}

#[async_trait]
impl<O: 'static> LeasedLock for Lock<O, Leased> {
    fn lease(&self) -> Lease {
        self.lease()
    }

    async fn acquire_leased(&self, options: AcquireOptions) -> Result<LeasedGuard> {
        self.acquire_leased(options).await
    }
}
