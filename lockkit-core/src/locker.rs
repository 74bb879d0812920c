use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::driver::Driver;
use crate::engine::Engine;
use crate::{Capabilities, Lease, Lock, LockName, Namespace, Parameters, Result};

/// Makes locks on one driver. Cheap to clone; clones are the same locker.
///
/// Its keepers, which renew and release, run on the tokio runtime that it was made in, or else on
/// the first one that it is used in: one with timers, which has to be running for holds to be
/// renewed. Locks may be used from any other executor. When that runtime ends, so do the holds, and
/// acquisitions fail with [`Error::ShutDown`](crate::Error::ShutDown).
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
    namespace: Namespace,
    lease: Lease,
}

impl Locker {
    /// A locker with a lease of 30 seconds, or what the driver can keep that is nearest to it, in
    /// the namespace `lockkit`.
    pub fn new(driver: impl Driver) -> Self {
        Self::from_arc(Arc::new(driver))
    }

    /// Like [`new`](Self::new), for a driver that was chosen at run time.
    pub fn from_arc(driver: Arc<dyn Driver>) -> Self {
        let lease = Lease::default().within(&driver.capabilities());
        let engine = Arc::new(Engine::new(driver, Clock::system()));
        Self { engine, namespace: Namespace::default(), lease }
    }

    /// A locker with other settings.
    pub fn builder(driver: impl Driver) -> LockerBuilder {
        Self::builder_from_arc(Arc::new(driver))
    }

    /// Like [`builder`](Self::builder), for a driver that was chosen at run time.
    pub fn builder_from_arc(driver: Arc<dyn Driver>) -> LockerBuilder {
        LockerBuilder {
            lease: Lease::default().within(&driver.capabilities()),
            driver,
            namespace: Namespace::default(),
            clock: Clock::system(),
        }
    }

    /// The lock called `name`. No request is sent.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`](crate::Error::InvalidName) if the name is empty, longer than 512
    /// bytes, or has a control character.
    pub fn lock(&self, name: &str) -> Result<Lock> {
        let name = LockName::new(&self.namespace, name)?;
        Ok(Lock::new(Arc::clone(&self.engine), name, self.lease))
    }

    /// The lease of locks that have no [other](Lock::leased).
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// The driver behind it.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.engine.driver
    }

    /// What the driver promises.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.driver.capabilities()
    }

    /// Ends every hold and every wait of this locker, releases what it has at the backend, and
    /// closes the driver. Guards report their hold as lost; acquisitions, now and later, fail with
    /// [`Error::ShutDown`](crate::Error::ShutDown).
    ///
    /// Returns when nothing is left, or when what an unreachable backend still has runs out by
    /// itself: one lease and 5 seconds later. An acquisition that is under way and is not polled
    /// is waited for as long.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, releasing goes on in the background; the driver is then closed when
    /// its locker is dropped. It may be called again.
    pub async fn shutdown(&self) {
        self.engine.shut_down(self.lease.ttl() + Duration::from_secs(5)).await;
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker")
            .field("driver", &self.engine.driver)
            .field("namespace", &self.namespace)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Locker`].
#[derive(Debug)]
pub struct LockerBuilder {
    driver: Arc<dyn Driver>,
    namespace: Namespace,
    lease: Lease,
    clock: Clock,
}

impl LockerBuilder {
    /// Keeps the locks apart from those of other applications on the same backend.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// Sets how long a hold outlives a dead holder.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease = self.lease.with_ttl(ttl);
        self
    }

    /// Sets the lease of locks that have no [other](Lock::leased).
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Takes another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Takes the [common parameters](crate::COMMON) of a backend URL.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a value that cannot be used.
    pub fn parameters(mut self, parameters: &Parameters<'_>) -> Result<Self> {
        if let Some(namespace) = parameters.text("namespace") {
            self.namespace =
                Namespace::new(namespace).map_err(|error| parameters.bad("namespace", error))?;
        }
        if let Some(ttl) = parameters.duration("ttl")? {
            self.lease = self.lease.with_ttl(ttl);
        }
        if let Some(max_hold) = parameters.duration("max_hold")? {
            self.lease = self.lease.max_hold(max_hold);
        }
        Ok(self)
    }

    /// Makes the locker. No request is sent.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the driver cannot keep such a lease.
    pub fn build(self) -> Result<Locker> {
        let Self { driver, namespace, lease, clock } = self;
        lease.check(driver.id(), &driver.capabilities())?;
        Ok(Locker { engine: Arc::new(Engine::new(driver, clock)), namespace, lease })
    }
}
