use std::time::Duration;

use lockkit::{Fifo, Lock, LockGuard, Locker};
use lockkit_bench::Result;

use super::{Client, Library};

/// lockkit, as whoever depends on it has it.
#[derive(Clone, Debug)]
pub struct Lockkit {
    url: String,
    lease: Duration,
    is_fair: bool,
}

/// A locker of its own.
#[derive(Debug)]
pub struct OneLocker {
    locker: Locker,
    is_fair: bool,
}

/// In any order, or first come, first served.
#[derive(Debug)]
pub enum AnyLock {
    /// In any order.
    Plain(Lock),
    /// First come, first served.
    Fair(Lock<Fifo>),
}

impl Lockkit {
    /// Locks at that URL with leases of that length, where leases keep them.
    pub fn at(url: impl Into<String>, lease: Duration) -> Self {
        Self { url: url.into(), lease, is_fair: false }
    }

    /// First come, first served.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.is_fair = true;
        self
    }
}

impl Library for Lockkit {
    type Client = OneLocker;

    async fn connect(&self) -> Result<OneLocker> {
        let joint = if self.url.contains('?') { '&' } else { '?' };
        let lease = self.lease.as_millis();
        let locker = lockkit::connect(&format!("{}{joint}ttl={lease}ms", self.url)).await?;
        Ok(OneLocker { locker, is_fair: self.is_fair })
    }
}

impl Client for OneLocker {
    type Lock = AnyLock;
    type Hold = LockGuard;

    fn lock(&self, name: &str) -> Result<AnyLock> {
        let lock = self.locker.lock(name)?;
        Ok(match self.is_fair {
            true => AnyLock::Fair(lock.fair()?),
            false => AnyLock::Plain(lock),
        })
    }

    async fn acquire(&self, lock: &AnyLock) -> Result<LockGuard> {
        Ok(match lock {
            AnyLock::Plain(lock) => lock.acquire().await?,
            AnyLock::Fair(lock) => lock.acquire().await?,
        })
    }

    async fn release(&self, _: &AnyLock, hold: LockGuard) -> Result<()> {
        Ok(hold.release().await?)
    }
}
