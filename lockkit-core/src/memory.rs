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
//! use lockkit_core::{Locker, memory::MemoryDriver};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
//! let guard = Locker::new(MemoryDriver::new()).lock("orders/42")?.acquire().await?;
//! assert!(guard.is_held());
//! guard.release().await
//! # }
//! ```

mod faults;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

pub use self::faults::{Fault, Faults};
use crate::clock::{Clock, Instant};
use crate::driver::{
    Attempt, CallLimit, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Node,
    OwnerId, Release, Renewal, Run, Taken,
};
use crate::{
    BackendUrl, Capabilities, Diagnosis, Fairness, FencingToken, Holder, Label, Liveness, LockName,
    LockStatus, Namespace, Operation, Parameter, Result, Waiter,
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
        driver.backend.lock().last_token = Arc::clone(&LAST_TOKEN);
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
        let state = self.backend.lock();
        state.locks.is_empty() && state.mailboxes.0.is_empty()
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
        let locks = self.backend.lock().locks.len();
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
            let Some(mailbox) = self.backend.lock().mailboxes.find(claim.owner()) else {
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
        self.inspected(move |state| {
            let names = state.locks.keys().filter(|name| *name.namespace() == namespace);
            let mut held: Vec<_> = names.map(|name| state.look(name)).collect();
            held.retain(|status| status.holder().is_some());
            held.sort_by(|one, other| one.name().cmp(other.name()));
            held
        })
        .await
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

/// What the backend knows.
#[derive(Default)]
struct State {
    locks: HashMap<LockName, Entry>,
    mailboxes: Mailboxes,
    /// One counter for all names, so that a name that is at rest costs no memory.
    last_token: Arc<AtomicU64>,
}

#[derive(Default)]
struct Entry {
    held: Option<Held>,
    /// In order of arrival.
    places: VecDeque<Place>,
}

struct Held {
    owner: OwnerId,
    token: FencingToken,
    expiry: Instant,
    granted: Instant,
    who: Who,
}

struct Place {
    owner: OwnerId,
    arrival: Instant,
    who: Who,
    /// A lease after the waiter last asked: when the place ends, and so would a hold handed to it.
    deadline: Instant,
}

/// What is known of a claimant besides its id.
struct Who {
    label: Label,
    clock: Clock,
}

impl Who {
    fn of(claim: &Claim) -> Self {
        Self { label: claim.label().clone(), clock: claim.clock().clone() }
    }
}

impl State {
    fn try_acquire(&mut self, claim: &Claim) -> Result<Attempt, DriverError> {
        let (now, owner) = (claim.now(), claim.owner());
        self.serve(claim.name());
        let entry = self.locks.entry(claim.name().clone()).or_default();
        if let Some(held) = entry.held.as_mut().filter(|held| held.owner != owner) {
            let taken = Taken::new().free_in(held.remaining());
            if claim.waits() {
                // What was told before this refusal is over.
                self.mailboxes.open(owner).take();
                let deadline = now + claim.ttl();
                match entry.places.iter_mut().find(|place| place.owner == owner) {
                    Some(place) => place.deadline = place.deadline.max(deadline),
                    None => {
                        let who = Who::of(claim);
                        entry.places.push_back(Place { owner, arrival: now, who, deadline });
                    }
                }
            }
            return Ok(Attempt::Taken(taken));
        }
        // This answer tells of what was handed over.
        self.mailboxes.open(owner).take();
        let expiry = now + claim.ttl();
        let token = match &mut entry.held {
            Some(held) => {
                held.expiry = held.expiry.max(expiry);
                held.token
            }
            // Whoever waited would hold it by now.
            free => {
                let token = next_token(&self.last_token)?;
                *free = Some(Held { owner, token, expiry, granted: now, who: Who::of(claim) });
                token
            }
        };
        Ok(Attempt::Granted(Grant::new().token(token)))
    }

    fn renew(&mut self, claim: &Claim) -> Renewal {
        let now = claim.now();
        self.serve(claim.name());
        let held = self.locks.get_mut(claim.name()).and_then(|entry| entry.held.as_mut());
        match held.filter(|held| held.owner == claim.owner()) {
            Some(held) => {
                held.expiry = held.expiry.max(now + claim.ttl());
                Renewal::Held(Default::default())
            }
            None => Renewal::Lost,
        }
    }

    fn release(&mut self, claim: &Claim) -> Release {
        let owner = claim.owner();
        self.mailboxes.close(owner);
        self.serve(claim.name());
        let Some(entry) = self.locks.get_mut(claim.name()) else { return Release::NotHeld };
        let freed = entry.held.take_if(|held| held.owner == owner).is_some();
        if !freed {
            // A holder has no place, and there may be thousands of places.
            let at = entry.places.iter().position(|place| place.owner == owner);
            _ = at.and_then(|at| entry.places.remove(at));
        }
        self.serve(claim.name());
        if freed { Release::Freed } else { Release::NotHeld }
    }

    fn look(&self, name: &LockName) -> LockStatus {
        let status = LockStatus::free(name.clone());
        let Some(entry) = self.locks.get(name) else { return status };
        let waiters = entry.places.iter().filter_map(Place::seen).collect();
        let status = status.waited_for_by(waiters);
        match entry.held.as_ref().and_then(Held::seen) {
            Some(holder) => status.held_by(holder),
            None => status,
        }
    }

    fn break_hold(&mut self, name: &LockName, owner: Option<OwnerId>) -> Option<Holder> {
        let entry = self.locks.get_mut(name)?;
        let is_meant = |held: &mut Held| owner.is_none_or(|owner| held.owner == owner);
        let held = entry.held.take_if(is_meant)?;
        self.mailboxes.tell(held.owner, Change::Lost);
        self.serve(name);
        // A lease that had run out was nobody's hold.
        held.seen()
    }

    /// Ends a lease that has run out, and hands a free lock to the first place that is alive.
    fn serve(&mut self, name: &LockName) {
        let Some(entry) = self.locks.get_mut(name) else { return };
        if let Some(Held { owner, .. }) = entry.held.take_if(|held| held.remaining().is_zero()) {
            self.mailboxes.close_if_over(owner);
        }
        while entry.held.is_none()
            && let Some(Place { owner, deadline, who, .. }) = entry.places.pop_front()
        {
            let now = who.clock.now();
            if deadline <= now {
                self.mailboxes.close_if_over(owner);
                continue;
            }
            // Without a token there is no grant; the waiter hears of it at its next ask.
            let Ok(token) = next_token(&self.last_token) else { break };
            entry.held = Some(Held { owner, token, expiry: deadline, granted: now, who });
            self.mailboxes.tell(owner, Change::Granted(Grant::new().token(token)));
        }
        if entry.held.is_none() && entry.places.is_empty() {
            self.locks.remove(name);
        }
    }
}

impl Held {
    /// By the clock of its holder: each machine of a test has its own.
    fn remaining(&self) -> Duration {
        self.expiry.saturating_duration_since(self.who.clock.now())
    }

    /// The hold as others see it, unless it has run out.
    fn seen(&self) -> Option<Holder> {
        let now = self.who.clock.now();
        let free_in = self.remaining();
        let holder =
            Holder::new(self.owner).with_label(self.who.label.clone()).with_token(self.token);
        let holder = holder
            .with_held_for(now.saturating_duration_since(self.granted))
            .with_remaining(free_in);
        (!free_in.is_zero()).then_some(holder)
    }
}

impl Place {
    /// The place as others see it, unless it has run out.
    fn seen(&self) -> Option<Waiter> {
        let now = self.who.clock.now();
        let waiter = Waiter::new(self.owner).with_label(self.who.label.clone());
        let waiter = waiter.with_waiting_for(now.saturating_duration_since(self.arrival));
        (self.deadline > now).then_some(waiter)
    }
}

fn next_token(last: &AtomicU64) -> Result<FencingToken, DriverError> {
    FencingToken::new(last.fetch_add(1, Ordering::Relaxed) + 1)
        .ok_or_else(|| DriverError::new(ErrorKind::Capacity, "the fencing tokens are used up"))
}

/// News for claims that wait or hold.
#[derive(Default)]
struct Mailboxes(HashMap<OwnerId, Arc<Mailbox>>);

#[derive(Default)]
struct Mailbox {
    news: Mutex<Option<Change>>,
    arrival: Notify,
}

impl Mailboxes {
    fn open(&mut self, owner: OwnerId) -> &Mailbox {
        self.0.entry(owner).or_default()
    }

    fn close(&mut self, owner: OwnerId) {
        self.0.remove(&owner);
    }

    /// For an owner whose hold or place has run out, and that may be dead, or only late: it then
    /// reads that it has lost, or asks again.
    fn close_if_over(&mut self, owner: OwnerId) {
        if self.0.get(&owner).is_some_and(|mailbox| mailbox.is_over()) {
            self.close(owner);
        }
    }

    fn find(&self, owner: OwnerId) -> Option<Arc<Mailbox>> {
        self.0.get(&owner).cloned()
    }

    fn tell(&self, owner: OwnerId, change: Change) {
        if let Some(mailbox) = self.0.get(&owner) {
            *mailbox.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(change);
            mailbox.arrival.notify_one();
        }
    }
}

impl Mailbox {
    fn take(&self) -> Option<Change> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether there is no news that is still true when a hold or a place has run out.
    fn is_over(&self) -> bool {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*news, None | Some(Change::Granted(_)))
    }
}
