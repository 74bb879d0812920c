use std::time::Duration;

use lockkit::{Error, Fifo, Lock, LockGuard, Locker};
use lockkit_bench::Result;

use super::{Client, Library};

/// What one takes at a server that makes a process for it, while others are made.
const A_CONNECTION: Duration = Duration::from_millis(5);

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

    /// Whoever waits for the first time may make a connection for news.
    async fn prepare(&self, name: &str, clients: usize) -> Result<()> {
        let lock = self.lock(name)?;
        let hold = self.acquire(&lock).await?;
        let patience = A_CONNECTION * u32::try_from(clients)?;
        let waited = match &lock {
            AnyLock::Plain(lock) => lock.acquire_timeout(patience).await,
            AnyLock::Fair(lock) => lock.acquire_timeout(patience).await,
        };
        match waited {
            Err(Error::TimedOut { .. }) => Ok(hold.release().await?),
            Err(error) => Err(error.into()),
            Ok(_) => Err("a lock was granted twice".into()),
        }
    }

    async fn release(&self, _: &AnyLock, hold: LockGuard) -> Result<()> {
        Ok(hold.release().await?)
    }
}
