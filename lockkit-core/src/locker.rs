use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::driver::{Driver, DriverError, ErrorKind, Inspect, OwnerId};
use crate::engine::Engine;
use crate::parameters::Common;
use crate::{
    BackendUrl, Capabilities, Diagnosis, Holder, Label, Lease, Lock, LockName, LockStatus,
    Namespace, Operation, Parameters, Result,
};

/// Makes locks on one driver. Cheap to clone; clones are the same locker.
///
/// Its keepers, which renew and release, run on the tokio runtime in which the locker was made, or
/// else on the first one in which it is used. That runtime needs timers, without which an acquisition panics, and
/// must be running for holds to be renewed. Locks may be used from any other executor. When the locker's runtime ends,
/// so do the holds, and acquisitions fail with [`Error::ShutDown`](crate::Error::ShutDown).
///
/// A synchronous thread calls `block_on`, of that runtime or any other. The locker's runtime should
/// then have threads of its own: a current-thread runtime renews only while a `block_on` of it
/// runs, and a hold that is kept outside of one for longer than its lease is lost. Outside of one
/// only [`Hold::is_held`](crate::Hold::is_held) tells of that: [`Hold::ended`](crate::Hold::ended)
/// does not return then, and [`Lock::run`] does not drop the work. Time limits of waits do not run
/// out either, nor does a shutdown come to its end.
///
/// ```
/// # use lockkit_core::{Locker, memory::MemoryDriver};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// let locker = runtime.block_on(async { Locker::new(MemoryDriver::new()) });
/// let lock = locker.lock("orders/42")?;
/// let guard = runtime.block_on(lock.acquire())?;
/// # fn work() {}
/// work(); // for as long as it takes: it is renewed meanwhile
/// assert!(guard.is_held());
/// runtime.block_on(guard.release())?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
    namespace: Namespace,
    lease: Lease,
}

impl Locker {
    /// A locker with a lease of 30 seconds, or the nearest one that the driver can keep, in the
    /// namespace `lockkit`.
    ///
    /// A driver that was connected to a URL belongs in [`from_url`](Self::from_url): here, what the
    /// URL says about the locker, such as its `namespace`, is ignored.
    pub fn new(driver: impl Driver) -> Self {
        Self::from_arc(Arc::new(driver))
    }

    /// Like [`new`](Self::new), for a driver that was chosen at run time, or that is also used
    /// beside the locker. Whoever [shuts the locker down](Self::shutdown) closes the driver, for
    /// all who use it.
    pub fn from_arc(driver: Arc<dyn Driver>) -> Self {
        // Its lease is one that the driver can keep.
        Self::builder_from_arc(driver).unchecked()
    }

    /// A locker on the driver that was connected to `url`, as the facade's `connect` makes it: with
    /// the [common parameters](crate::COMMON_PARAMETERS) of the URL, which a driver ignores.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use lockkit_core::{BackendUrl, Locker, memory::MemoryDriver};
    /// # fn main() -> lockkit_core::Result<()> {
    /// let url: BackendUrl = "memory:?namespace=shop&ttl=10s".parse()?;
    /// let driver = Arc::new(MemoryDriver::connect(&url)?);
    /// let locker = Locker::from_url(driver.clone(), &url)?;
    /// assert_eq!(locker.namespace().as_str(), "shop");
    /// // The driver is there for what only it can do.
    /// driver.faults();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a value that cannot be used, or if the driver
    /// cannot keep such a lease.
    pub fn from_url(driver: Arc<dyn Driver>, url: &BackendUrl) -> Result<Self> {
        let locker = Self::builder_from_arc(driver).parameters(&url.unchecked())?;
        locker.build().map_err(|error| url.error(error.to_string()))
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
            label: Label::of_this_process(),
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

    /// A locker on the same driver whose locks are in another namespace, such as that of another
    /// tenant. The two share everything else, a [`shutdown`](Self::shutdown) included.
    ///
    /// ```
    /// # use lockkit_core::{Locker, Namespace, memory::MemoryDriver};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let tenants = ["shop-7", "shop-8"].map(str::parse::<Namespace>);
    /// for tenant in tenants {
    ///     let guard = locker.in_namespace(tenant?).lock("stock")?.acquire().await?;
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn in_namespace(&self, namespace: Namespace) -> Self {
        Self { namespace, ..self.clone() }
    }

    /// The lease of locks that were not given [another](Lock::leased).
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// The namespace of this locker's locks.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The driver behind this locker. What only one kind of driver can do is reached by its type:
    ///
    /// ```
    /// # use lockkit_core::{Locker, memory::MemoryDriver};
    /// use std::any::Any;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    /// let driver: &dyn Any = &**locker.driver();
    /// if let Some(memory) = driver.downcast_ref::<MemoryDriver>() {
    ///     memory.faults();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.engine.driver
    }

    /// What the driver promises.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.driver.capabilities()
    }

    /// How the lock called `name` stands: who holds it and who has a place in the queue. Looking
    /// changes nothing, and what it finds is already old when it arrives: it is for people and
    /// displays, not for decisions.
    ///
    /// ```
    /// # use lockkit_core::{Locker, memory::MemoryDriver};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
    /// let locker = Locker::new(MemoryDriver::new());
    /// let guard = locker.lock("orders/42")?.acquire().await?;
    /// let status = locker.look("orders/42").await?;
    /// assert_eq!(status.holder().map(|holder| holder.owner()), Some(guard.owner()));
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the driver cannot tell;
    /// [`Error::InvalidName`](crate::Error::InvalidName);
    /// [`Error::ShutDown`](crate::Error::ShutDown); [`Error::Config`](crate::Error::Config) outside
    /// of a runtime; and whatever the driver reports.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing changes.
    pub async fn look(&self, name: &str) -> Result<LockStatus> {
        let name = LockName::new(&self.namespace, name)?;
        let (inspected, asked) = (self.inspected("telling who holds a lock")?, name.clone());
        let status = async move { inspected.get()?.look(&asked).await };
        self.engine.request(Operation::Inspect, Some(&name), status).await
    }

    /// Every held lock of the locker's namespace, sorted by name.
    ///
    /// # Errors
    ///
    /// Same as [`look`](Self::look).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing changes.
    pub async fn held(&self) -> Result<Vec<LockStatus>> {
        let namespace = self.namespace.clone();
        let inspected = self.inspected("telling which locks are held")?;
        let held = async move { inspected.get()?.held(&namespace).await };
        self.engine.request(Operation::Inspect, None, held).await
    }

    /// Ends the hold of the lock called `name` and returns its holder, or `None` if there was no
    /// such hold. If an `owner` is named, only a hold of that owner is ended. Waiters are then
    /// served.
    ///
    /// The holder, if it lives, learns of this at its next renewal at the latest, or, if its lease
    /// is [not renewed](crate::Renew::Never), when the lease is over. It may go on until then: only
    /// a resource that checks [fencing tokens](crate::FencingToken) refuses it at once.
    ///
    /// # Errors
    ///
    /// Same as [`look`](Self::look); [`Error::Unreachable`](crate::Error::Unreachable) leaves it
    /// open whether the hold was broken.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, it may or may not break the hold.
    pub async fn break_hold(&self, name: &str, owner: Option<OwnerId>) -> Result<Option<Holder>> {
        let name = LockName::new(&self.namespace, name)?;
        let (inspected, asked) = (self.inspected("breaking a hold")?, name.clone());
        let broken = async move { inspected.get()?.break_hold(&asked, owner).await };
        let holder = self.engine.request(Operation::Break, Some(&name), broken).await?;
        if let Some(holder) = &holder {
            tracing::warn!(lock = %name, owner = %holder.owner(), "broken");
        }
        Ok(holder)
    }

    /// Looks at how the backend is set up, and reports what is right and what is wrong for keeping
    /// locks. Changes nothing.
    ///
    /// # Errors
    ///
    /// Same as [`look`](Self::look), if nothing could be found out.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing changes.
    pub async fn diagnose(&self) -> Result<Vec<Diagnosis>> {
        let (inspected, namespace) = (self.inspected("diagnosis")?, self.namespace.clone());
        let findings = async move { inspected.get()?.diagnose(&namespace).await };
        self.engine.request(Operation::Inspect, None, findings).await
    }

    fn inspected(&self, what: &'static str) -> Result<Inspected> {
        self.engine.check_running()?;
        Ok(Inspected { driver: Arc::clone(self.driver()), what })
    }

    /// Ends every hold and every wait of this locker, releases what it has at the backend, and
    /// closes the driver. Guards report their hold as lost; acquisitions, now and later, fail with
    /// [`Error::ShutDown`](crate::Error::ShutDown).
    ///
    /// Returns when all of that is done. This takes a request or two, or the rest of a lease after
    /// an acquisition that had no answer, since its request may land until then. While the backend
    /// cannot be reached, the shutdown gives up after a lease of the locker and 10 seconds, 5 of
    /// which are for the driver to close; what is left at the backend ends with its own lease. If
    /// you have less time, for example under an orchestrator that kills after 30 seconds, wrap the
    /// call in a [`timeout`](tokio::time::timeout).
    ///
    /// Work that goes on under a lock is not waited for: let it end first, or have it watch its
    /// [`Hold`](crate::Hold).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped at any point, releasing goes on in the background, and the driver is then
    /// closed when its locker is dropped. It may be called again.
    pub async fn shutdown(&self) {
        self.engine.shut_down(self.lease.ttl() + Duration::from_secs(5)).await;
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker")
            .field("driver", &self.engine.driver.id())
            .field("namespace", &self.namespace)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A driver that may be able to tell of its locks, for one request.
struct Inspected {
    driver: Arc<dyn Driver>,
    what: &'static str,
}

impl Inspected {
    fn get(&self) -> std::result::Result<&dyn Inspect, DriverError> {
        let unsupported = || DriverError::new(ErrorKind::Unsupported, self.what);
        self.driver.inspect().ok_or_else(unsupported)
    }
}

/// Settings of a [`Locker`].
#[derive(Debug)]
pub struct LockerBuilder {
    driver: Arc<dyn Driver>,
    namespace: Namespace,
    lease: Lease,
    clock: Clock,
    label: Label,
}

impl LockerBuilder {
    /// Keeps the locks apart from those of other applications on the same backend.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// Sets how long a hold outlives a dead holder, where holds are
    /// [leases](crate::Liveness::Lease). The length of a session is set when the driver is
    /// connected, by `ttl` in its URL.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease = self.lease.with_ttl(ttl);
        self
    }

    /// Sets the lease of locks that are not given [another](Lock::leased). Of its length, the same
    /// holds as for [`ttl`](Self::ttl).
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Sets what the locker's holders and waiters are called where locks are
    /// [looked at](Locker::look). The default is the host and process id.
    #[must_use]
    pub fn label(mut self, label: Label) -> Self {
        self.label = label;
        self
    }

    /// Uses another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Applies the [common parameters](crate::COMMON_PARAMETERS) of a backend URL.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a value that cannot be used.
    pub fn parameters(mut self, parameters: &Parameters<'_>) -> Result<Self> {
        let Common { namespace, label, ttl, max_hold } = Common::of(parameters)?;
        self.namespace = namespace.unwrap_or(self.namespace);
        self.label = label.unwrap_or(self.label);
        self.lease = ttl.map_or(self.lease, |ttl| self.lease.with_ttl(ttl));
        self.lease = max_hold.map_or(self.lease, |longest| self.lease.max_hold(longest));
        Ok(self)
    }

    /// Makes the locker. No request is sent.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the driver cannot keep such a lease;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the lease is not renewed, and the
    /// driver's holds end with something other than a lease.
    pub fn build(self) -> Result<Locker> {
        self.lease.check(self.driver.id(), &self.driver.capabilities())?;
        Ok(self.unchecked())
    }

    fn unchecked(self) -> Locker {
        let Self { driver, namespace, lease, clock, label } = self;
        Locker { engine: Arc::new(Engine::new(driver, clock, label)), namespace, lease }
    }
}
