//! Locks within one process: the reference driver, and a backend for tests, with [faults](Faults)
//! and [losses](MemoryDriver::revoke) on demand.
//!
//! First come, first served, by hand-over: a release gives the lock to the waiter that has waited
//! longest. Holds are leases, renewed for as long as their guard lives and its runtime runs: a
//! [maximum hold](crate::Lease::max_hold) bounds how long a stuck task may block the others.
//! Fencing tokens rise for as long as the process lives, and begin anew in the next process: guard
//! what remembers them for longer, as a database does, with locks of another backend.
//!
//! ```
//! # use lockkit_core as lockkit;
//! use lockkit::{Locker, memory::MemoryDriver};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
//! let guard = Locker::new(MemoryDriver::new()).lock("orders/42")?.acquire().await?;
//! assert!(guard.is_held());
//! guard.release().await
//! # }
//! ```

mod faults;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;

pub use self::faults::{Fault, Faults};
use self::state::State;
use crate::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, Inspect, Node, OwnerId, Release,
    Renewal, Run,
};
use crate::{
    BackendUrl, Capabilities, Diagnosis, Fairness, Holder, Liveness, LockName, LockStatus,
    Namespace, Operation, Parameter, Result,
};

/// What [`MemoryDriver`] promises.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::Fifo)
    .fencing()
    .notification()
    .inspection();

/// The parameters of `memory:` besides the [common](crate::COMMON_PARAMETERS) ones: none.
pub const PARAMETERS: &[Parameter] = &[];

/// Locks within one process. Clones share them.
#[derive(Clone)]
pub struct MemoryDriver {
    backend: Arc<Backend>,
}

/// What a server would be.
struct Backend {
    /// No other backend of this process has it.
    number: u64,
    state: Mutex<State>,
    faults: Faults,
}

impl MemoryDriver {
    /// Locks that nobody else knows.
    pub fn new() -> Self {
        Self { backend: Arc::default() }
    }

    /// The locks of this name in this process, for as long as anybody has them.
    pub fn shared(name: &str) -> Self {
        static SHARED: LazyLock<Mutex<HashMap<String, Weak<Backend>>>> =
            LazyLock::new(Mutex::default);
        // Tokens rise even if everybody gives up a name and it comes back.
        static LAST_TOKEN: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = shared.get(name).and_then(Weak::upgrade) {
            return Self { backend };
        }
        shared.retain(|_, backend| backend.strong_count() > 0);
        let driver = Self::new();
        *driver.backend.lock() = State::with_tokens(&LAST_TOKEN);
        shared.insert(name.into(), Arc::downgrade(&driver.backend));
        driver
    }

    /// `memory:` for [new](Self::new) locks, `memory:NAME` for [shared](Self::shared) ones.
    ///
    /// What `url` says about a locker, such as its `namespace`, is only checked here:
    /// [`Locker::from_url`](crate::Locker::from_url) applies it, and
    /// [`Locker::new`](crate::Locker::new) does not.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a URL with a host or an unknown parameter.
    pub fn connect(url: &BackendUrl) -> Result<Self> {
        url.parameters(PARAMETERS)?;
        if url.has_authority() {
            return Err(url.error("write `memory:` or `memory:NAME`, without slashes"));
        }
        Ok(match url.path() {
            "" => Self::new(),
            name => Self::shared(name),
        })
    }

    /// Takes the lock away from its holder and gives it to the first waiter.
    pub fn revoke(&self, name: &LockName) {
        self.backend.lock().break_hold(name, None);
    }

    /// Makes requests to this backend go wrong, for tests.
    pub fn faults(&self) -> &Faults {
        &self.backend.faults
    }

    /// Whether nothing is left of any claim, for tests.
    pub fn is_idle(&self) -> bool {
        self.backend.lock().is_idle()
    }

    async fn request<T: Send + 'static>(
        &self,
        operation: Operation,
        claim: &Claim,
        carry_out: fn(&mut State, &Claim) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let (backend, sent) = (Arc::clone(&self.backend), claim.clone());
        let carry_out = move || carry_out(&mut backend.lock(), &sent);
        match self.backend.faults.next(operation) {
            None => carry_out(),
            Some(fault) => fault.strike(claim.call_limit(), carry_out).await,
        }
    }

    /// A look, which changes nothing, so that its outcome is never unknown.
    async fn inspected<T: Send + 'static>(
        &self,
        look: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let Some(fault) = self.backend.faults.next(Operation::Inspect) else {
            return Ok(look(&self.backend.lock()));
        };
        let backend = Arc::clone(&self.backend);
        let limit = CallLimit::default().of_a_look();
        let seen = fault.strike(limit, move || Ok(look(&backend.lock()))).await;
        seen.map_err(DriverError::without_effect)
    }
}

impl Default for MemoryDriver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self.backend.lock().len();
        f.debug_struct("MemoryDriver").field("locks", &locks).finish_non_exhaustive()
    }
}

#[async_trait]
impl Driver for MemoryDriver {
    fn id(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.request(Operation::Acquire, claim, State::try_acquire).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.request(Operation::Renew, claim, |state, claim| Ok(state.renew(claim))).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.request(Operation::Release, claim, |state, claim| Ok(state.release(claim))).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn node(&self) -> Option<&dyn Node> {
        Some(self)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        loop {
            let Some(mailbox) = self.backend.lock().mailbox(claim.owner()) else {
                return std::future::pending().await;
            };
            let arrival = mailbox.arrival.notified();
            if let Some(change) = mailbox.take() {
                return change;
            }
            arrival.await;
        }
    }
}

#[async_trait]
impl Inspect for MemoryDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let name = name.clone();
        self.inspected(move |state| state.look(&name)).await
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let namespace = namespace.clone();
        self.inspected(move |state| state.held(&namespace)).await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        Ok(self.backend.lock().break_hold(name, owner))
    }

    async fn diagnose(&self, _: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        Ok(vec![Diagnosis::warning(
            "durability",
            "these locks live and end with this process, and no other process sees them",
            "for locks between processes, choose another backend",
        )])
    }
}

/// It lasts as long as the process, and remembers all the while.
#[async_trait]
impl Node for MemoryDriver {
    async fn run(&self, _: Duration) -> Result<Run, DriverError> {
        Ok(Run::new(format!("memory {}", self.backend.number)).durable())
    }
}

impl Default for Backend {
    fn default() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Self { number, state: Mutex::default(), faults: Faults::default() }
    }
}

impl Backend {
    /// No step of [`State`] panics half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
