use std::sync::Arc;
use std::time::Duration;

use lockkit::driver::{Claim, Driver as _, OwnerId};
use lockkit::{
    BackendUrl, Capabilities, Fifo, Lease, Liveness, Lock, LockGuard, Locker, Namespace,
};

use crate::{Counted, Result};

/// What is measured: locks at a URL, in any order or first come, first served.
#[derive(Clone, Debug)]
pub struct Subject {
    label: String,
    url: BackendUrl,
    is_fair: bool,
    /// Begins all names, so that nobody else has the same.
    prefix: String,
}

impl Subject {
    /// Locks at that URL. The label appears in reports.
    ///
    /// # Errors
    ///
    /// If the URL cannot be used.
    pub fn new(label: impl Into<String>, url: &str) -> Result<Self> {
        Ok(Self::at(label, url.parse()?))
    }

    /// Like [`new`](Self::new), for a URL that was parsed before.
    pub fn at(label: impl Into<String>, url: BackendUrl) -> Self {
        let prefix = format!("bench-{}", &OwnerId::random().to_string()[..12]);
        Self { label: label.into(), url, is_fair: false, prefix }
    }

    /// The same locks, first come, first served, where that has to be asked for.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.label += ", fair";
        self.is_fair = true;
        self
    }

    /// What it is called.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Where the locks are.
    pub fn url(&self) -> &BackendUrl {
        &self.url
    }

    /// Whether another process can take the same locks.
    pub fn is_shared(&self) -> bool {
        self.url.scheme() != "memory"
    }

    /// A name of a lock that nobody else has.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Another client, with connections of its own.
    ///
    /// # Errors
    ///
    /// If the backend cannot be reached, or refuses.
    pub async fn client(&self) -> Result<Client> {
        let locker = lockkit::connect_url(&self.url).await?;
        let driver = Arc::new(Counted::new(locker.driver().clone()));
        Client::of(self.clone(), driver, locker.namespace().clone(), locker.lease())
    }
}

/// One client of a subject, whose requests are counted.
#[derive(Debug)]
pub struct Client {
    subject: Subject,
    driver: Arc<Counted>,
    locker: Locker,
}

impl Client {
    fn of(
        subject: Subject,
        driver: Arc<Counted>,
        namespace: Namespace,
        lease: Lease,
    ) -> Result<Self> {
        let locker = Locker::builder_from_arc(driver.clone()).namespace(namespace).lease(lease);
        let locker = locker.build()?;
        Ok(Self { subject, driver, locker })
    }

    /// The same, with leases of that length, or the nearest to it that the driver can keep. Where a
    /// session or a process keeps the holds, the client stays as it is.
    ///
    /// # Errors
    ///
    /// If the driver can keep no such lease after all.
    pub fn with_lease(self, ttl: Duration) -> Result<Self> {
        if !self.has_leases() {
            return Ok(self);
        }
        let Capabilities { min_ttl, max_ttl, .. } = self.driver.capabilities();
        let lease = Lease::new(ttl.clamp(min_ttl, max_ttl));
        Self::of(self.subject, self.driver, self.locker.namespace().clone(), lease)
    }

    /// A lock that only the clients of this subject have.
    ///
    /// # Errors
    ///
    /// If the backend is not fair although that is asked for.
    pub fn lock(&self, name: &str) -> Result<AnyLock> {
        let lock = self.locker.lock(&self.subject.name(name))?;
        Ok(match self.subject.is_fair {
            true => AnyLock::Fair(lock.fair()?),
            false => AnyLock::Plain(lock),
        })
    }

    /// A claim to such a lock, as the engine makes them for waiters.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn claim(&self, name: &str) -> Result<Claim> {
        let name = self.locker.lock(&self.subject.name(name))?.name().clone();
        let claim = Claim::new(name, self.lease()).waiting();
        Ok(if self.subject.is_fair { claim.fair() } else { claim })
    }

    /// Its driver.
    pub fn driver(&self) -> &Counted {
        &self.driver
    }

    /// The length of its leases.
    pub fn lease(&self) -> Duration {
        self.locker.lease().ttl()
    }

    /// Whether a lease is what ends its holds, so that each can have its own.
    pub fn has_leases(&self) -> bool {
        self.locker.capabilities().liveness == Liveness::Lease
    }

    /// Ends its connections.
    pub async fn close(&self) {
        self.locker.shutdown().await;
    }
}

/// A lock in any order, or first come, first served.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum AnyLock {
    /// In any order.
    Plain(Lock),
    /// First come, first served.
    Fair(Lock<Fifo>),
}

impl AnyLock {
    /// Waits for it.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn acquire(&self) -> lockkit::Result<LockGuard> {
        match self {
            Self::Plain(lock) => lock.acquire().await,
            Self::Fair(lock) => lock.acquire().await,
        }
    }
}
