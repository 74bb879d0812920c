use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Claim, Driver, DriverError, OwnerId};
use lockkit_core::{
    BoxError, Capabilities, DistributedLock, Fairness, Lease, Lock, LockGuard, LockName, Locker,
    Namespace,
};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::run::Pulse;
use crate::setup::Setup;

/// What a check ends in.
pub(crate) type Verdict<T = ()> = Result<T, Stop>;

/// Why a check ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The driver does not do what it should, or did not do it in time.
    Failed(String),
    /// The driver did what it may only do after the end of a lease, however slow it is.
    Refuted(String),
    /// It turned out that there is nothing to check.
    DoesNotApply(String),
}

/// An error of the driver or the engine where there should be none.
impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(with_sources(&error))
    }
}

/// What the error says, and what is behind it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Ends the check with a sentence that says what went wrong.
macro_rules! fail {
    ($($text:tt)+) => { return Err($crate::context::Stop::Failed(format!($($text)+))) };
}

/// The same for what slowness does not explain, as long as it is no slower than leases are long.
macro_rules! refute {
    ($($text:tt)+) => { return Err($crate::context::Stop::Refuted(format!($($text)+))) };
}

/// Ends the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            fail!($($text)+);
        }
    };
}

/// The same for what has to hold however slow anything is.
macro_rules! ensure_always {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            refute!($($text)+);
        }
    };
}

/// What a check works with: connections to the backend, fresh names, the driver's particulars.
pub(crate) struct Context {
    setup: Arc<Setup>,
    pulse: Arc<Pulse>,
    /// Is in every name of this check, so that no other check or run has the same names.
    tag: String,
    connections: Mutex<Vec<Arc<Connection>>>,
    is_silent: AtomicBool,
}

impl Context {
    pub(crate) fn new(setup: Arc<Setup>, pulse: Arc<Pulse>) -> Self {
        let tag = OwnerId::random().to_string()[..12].into();
        Self { setup, pulse, tag, connections: Mutex::default(), is_silent: AtomicBool::default() }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.setup.capabilities
    }

    pub(crate) fn id(&self) -> &'static str {
        self.setup.id
    }

    /// Whether claims that ask at the same time may all be refused.
    pub(crate) fn is_by_votes(&self) -> bool {
        self.setup.by_votes
    }

    /// The lease to ask for.
    pub(crate) fn ttl(&self) -> Duration {
        self.setup.ttl()
    }

    /// A lease that is no whole number of any unit, and a little longer than the usual one: what a
    /// driver takes off by rounding is more than clocks may differ.
    pub(crate) fn odd(&self) -> Duration {
        let ttl = self.ttl();
        let odd = Duration::from_secs(ttl.as_secs()) + Duration::from_micros(793_700);
        let odd = if odd < ttl { odd + Duration::from_secs(1) } else { odd };
        odd.min(self.capabilities().max_ttl)
    }

    /// A lease that does not run out while a check is under way.
    pub(crate) fn long(&self) -> Duration {
        let Capabilities { min_ttl, max_ttl, .. } = self.capabilities();
        Duration::from_secs(600).clamp(min_ttl, max_ttl)
    }

    /// Ends a check that holds a lock with one request while several leases run out, where no lease
    /// is as long as that.
    pub(crate) fn needs_long_leases(&self) -> Verdict {
        match self.long() < 4 * self.ttl() {
            true => Err(Stop::DoesNotApply(
                "the longest lease is not much longer than the shortest".into(),
            )),
            false => Ok(()),
        }
    }

    /// How long to wait for what should be there at once: long, for a busy machine, but well within
    /// a [long](Self::long) lease, so that the end of that is not taken for an answer.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(20).min(self.long() / 3)
    }

    /// How long to wait for the report of a loss: a driver may leave it to the next renewal to find
    /// that out, and that is due within the lease.
    pub(crate) fn notice(&self) -> Duration {
        self.ttl() + self.patience()
    }

    /// How long to wait for a lease of `ttl` to run out: backends are late in different ways, but
    /// none by this much.
    pub(crate) fn expiry(&self, ttl: Duration) -> Duration {
        3 * ttl + Duration::from_secs(5)
    }

    /// Whether waiters have places.
    pub(crate) fn has_order(&self) -> bool {
        self.capabilities().fairness != Fairness::Unordered
    }

    /// Returns when a lease of `ttl` that was granted before is over. No request may have looked at
    /// its lock by then, so this is learnt from the end of a later lease on another lock.
    pub(crate) async fn outlive(&self, ttl: Duration) -> Verdict {
        let (holder, other) = self.pair().await?;
        let (name, limit) = (self.name("later-@")?, self.expiry(ttl));
        let [later, after] = [(); 2].map(|()| Claim::new(name.clone(), ttl));
        holder.take(&later).await?;
        other.ask_until_granted(self, &after, limit).await?;
        Ok(())
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Verdict<Arc<Connection>> {
        let Some(connect) = &self.setup.connect else { fail!("the suite was given no `connect`") };
        match connect().await {
            Ok(driver) => {
                let connection = Arc::new(self.over(driver));
                self.all().push(connection.clone());
                Ok(connection)
            }
            Err(error) => fail!("no connection: {}", with_sources(&*error)),
        }
    }

    fn over(&self, driver: Arc<dyn Driver>) -> Connection {
        Connection::new(driver, self.pulse.clone(), self.setup.asks.clone())
    }

    /// Two connections.
    pub(crate) async fn pair(&self) -> Verdict<(Arc<Connection>, Arc<Connection>)> {
        Ok((self.connect().await?, self.connect().await?))
    }

    /// The namespace of all locks that do not try out namespaces.
    pub(crate) fn own_namespace(&self) -> Verdict<Namespace> {
        let own = self.setup.namespace.clone();
        own.map_or_else(|| Ok(Namespace::new("conformance")?), Ok)
    }

    /// A namespace that begins with the [own](Self::own_namespace) one, and goes on with `shape`
    /// and something that nobody had before in place of `@`.
    pub(crate) fn namespace_beside(&self, shape: &str) -> Verdict<Namespace> {
        let own = self.own_namespace()?;
        Ok(Namespace::new(&format!("{}-{}", own.as_str(), self.text(shape)))?)
    }

    /// Text made from `shape` by putting something that nobody had before in place of `@`.
    pub(crate) fn text(&self, shape: &str) -> String {
        shape.replace('@', &self.tag)
    }

    /// A name made from `shape` by putting something that nobody had before in place of `@`.
    pub(crate) fn name(&self, shape: &str) -> Verdict<LockName> {
        Ok(LockName::new(&self.own_namespace()?, &self.text(shape))?)
    }

    /// A claim of a new owner to the lock that the check is about.
    pub(crate) fn claim(&self) -> Verdict<Claim> {
        Ok(Claim::new(self.name("lock-@")?, self.ttl()))
    }

    /// The same, with a lease that does not run out while the check is under way.
    pub(crate) fn long_claim(&self) -> Verdict<Claim> {
        Ok(self.claim()?.with_ttl(self.long()))
    }

    /// A claim that waits, in a queue if the driver has one.
    pub(crate) fn queued(&self, claim: Claim) -> Claim {
        if self.has_order() { claim.fair() } else { claim.waiting() }
    }

    /// A [long](Self::long_claim) claim of each kind that waits: where there is an order on
    /// request, claims that do not ask for it hear of a release in another way.
    pub(crate) fn all_that_wait(&self) -> Verdict<Vec<Claim>> {
        Ok(self.all_that_wait_for(&self.name("lock-@")?))
    }

    /// The same, for the lock of that name.
    pub(crate) fn all_that_wait_for(&self, name: &LockName) -> Vec<Claim> {
        let kinds = self.kinds().into_iter().skip(1);
        kinds.map(|kind| kind(Claim::new(name.clone(), self.long()))).collect()
    }

    /// What makes claims of each kind of a plain one: first those that do not wait, then all that do.
    pub(crate) fn kinds(&self) -> Vec<fn(Claim) -> Claim> {
        let mut kinds: Vec<fn(Claim) -> Claim> = vec![|claim| claim, Claim::waiting];
        if self.has_order() {
            kinds.push(Claim::fair);
        }
        kinds
    }

    /// A claim of a new owner, for the same lock and of the same kind as `other`.
    pub(crate) fn rival(&self, other: &Claim) -> Claim {
        let claim = Claim::new(other.name().clone(), self.ttl());
        match (other.waits(), other.is_fair()) {
            (_, true) => claim.fair(),
            (true, false) => claim.waiting(),
            (false, false) => claim,
        }
    }

    /// Takes a lock away behind its holder's back.
    pub(crate) async fn revoke(&self, name: &LockName) -> Verdict {
        if let Some(revoke) = &self.setup.revoke {
            return hook("revoke", revoke(name.clone()).await);
        }
        let broken = self.connect().await?.break_hold(name, None).await?;
        ensure!(broken.is_some(), "the break of a hold found nobody");
        Ok(())
    }

    /// Takes a lock away from the claim, if that has it, over a connection that stands. Without
    /// inspection, it is taken from whoever has it.
    pub(crate) async fn revoke_from(&self, outside: &Connection, claim: &Claim) -> Verdict {
        match &self.setup.revoke {
            Some(revoke) if !self.capabilities().inspection => {
                hook("revoke", revoke(claim.name().clone()).await)
            }
            _ => outside.break_hold(claim.name(), Some(claim.owner())).await.map(drop),
        }
    }

    pub(crate) async fn sever(&self) -> Verdict {
        match &self.setup.sever {
            Some(sever) => hook("sever", sever().await),
            None => fail!("the suite was given no `sever`"),
        }
    }

    /// From now on the backend answers nothing, until it is told to [speak](Self::speak) or the
    /// check ends.
    pub(crate) async fn fall_silent(&self) -> Verdict {
        let Some((fall_silent, _)) = &self.setup.silence else {
            fail!("the suite was given no `silence`")
        };
        self.is_silent.store(true, Ordering::Relaxed);
        hook("silence", fall_silent().await)
    }

    /// Does nothing if the backend is not silent.
    pub(crate) async fn speak(&self) -> Verdict {
        match &self.setup.silence {
            Some((_, speak)) if self.is_silent.swap(false, Ordering::Relaxed) => {
                hook("silence", speak().await)
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn restart(&self) -> Verdict {
        match &self.setup.restart {
            Some(restart) => hook("restart", restart().await),
            None => fail!("the suite was given no `restart`"),
        }
    }

    /// An application with leases of the usual length.
    pub(crate) async fn client(&self) -> Verdict<Client> {
        self.client_with(Lease::new(self.ttl())).await
    }

    /// An application with leases that do not run out while a check is under way, so that
    /// whatever it leaves behind shows.
    pub(crate) async fn long_client(&self) -> Verdict<Client> {
        self.client_with(Lease::new(self.long())).await
    }

    /// Applications with [long](Self::long_client) leases, on connections of their own if there may
    /// be so many.
    pub(crate) async fn long_clients(&self, number: usize) -> Verdict<Vec<Client>> {
        let mut clients: Vec<Client> = Vec::with_capacity(number);
        while clients.len() < number {
            let connection = match clients.len().checked_sub(self.setup.connections) {
                None => self.connect().await?,
                Some(at) => clients[at].connection.clone(),
            };
            clients.push(self.client_over(connection, Lease::new(self.long()))?);
        }
        Ok(clients)
    }

    pub(crate) async fn client_with(&self, lease: Lease) -> Verdict<Client> {
        self.client_over(self.connect().await?, lease)
    }

    fn client_over(&self, connection: Arc<Connection>, lease: Lease) -> Verdict<Client> {
        let driver: Arc<dyn Driver> = connection.clone();
        let locker = Locker::builder_from_arc(driver)
            .namespace(self.own_namespace()?)
            .lease(lease)
            .build()?;
        let lock = locker.lock(&self.text("lock-@"))?;
        Ok(Client { connection, locker, lock })
    }

    /// Acquires a lock that nobody holds.
    pub(crate) async fn acquire(&self, lock: &Lock) -> Verdict<LockGuard> {
        Ok(self.promptly("a hold of a free lock", lock.acquire()).await??)
    }

    /// Waits for what should happen at once.
    pub(crate) async fn promptly<T>(
        &self,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Verdict<T> {
        self.within(self.patience(), what, future).await
    }

    /// Waits for the report that a hold was lost behind its holder's back.
    pub(crate) async fn reported(&self, guard: &LockGuard) -> Verdict {
        self.within(self.notice(), "the report of a loss", guard.lost()).await
    }

    /// Waits for what should happen within `limit`.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Verdict<T> {
        match tokio::time::timeout(limit, future).await {
            Ok(value) => Ok(value),
            Err(_) => fail!("{what}: not within {limit:?}"),
        }
    }

    /// Repeats a request, as the engine does, while the backend may be out of reach for a moment.
    pub(crate) async fn after_trouble<T>(
        &self,
        request: impl AsyncFn() -> Result<T, DriverError>,
    ) -> Verdict<T> {
        let begun = Instant::now();
        loop {
            let answer = request().await;
            let is_trouble = answer.as_ref().is_err_and(|error| error.kind().is_transient());
            if !is_trouble || begun.elapsed() > self.patience() {
                return Ok(answer?);
            }
            sleep(self.ttl() / 20).await;
        }
    }

    /// Lets a time pass that may be shorter than what a timer can tell.
    pub(crate) async fn pass(&self, time: Duration) {
        if self.setup.virtual_time {
            return sleep(time).await;
        }
        // By how much a timer may be late.
        const TICK: Duration = Duration::from_millis(2);
        let begun = Instant::now();
        if let Some(most) = time.checked_sub(TICK) {
            sleep(most).await;
        }
        while begun.elapsed() < time {
            yield_now().await;
        }
    }

    /// Removes what the check has left behind, some of it at a time. Goes on after an error, and
    /// returns the first.
    pub(crate) async fn clean_up(&self) -> Verdict {
        const AT_ONCE: usize = 16;
        let mut outcome = self.speak().await;
        let connections = self.all().clone();
        let left = connections.iter().flat_map(|connection| {
            connection.left().into_iter().map(|claim| (Arc::clone(connection), claim))
        });
        let (mut left, mut releases) = (left, JoinSet::new());
        loop {
            while releases.len() < AT_ONCE
                && let Some((connection, claim)) = left.next()
            {
                releases.spawn(async move { connection.let_go(&claim).await });
            }
            let Some(released) = releases.join_next().await else { break };
            outcome = outcome.and(released.map_err(Stop::from).flatten());
        }
        let mut ends = JoinSet::new();
        for connection in connections {
            ends.spawn(async move { connection.end().await });
        }
        while let Some(ended) = ends.join_next().await {
            outcome = outcome.and(ended.map_err(Stop::from));
        }
        outcome
    }

    /// How many locks and places it has not removed, and for how long the last of them stays.
    pub(crate) fn left(&self) -> Option<(usize, Duration)> {
        let left: Vec<_> = self.all().iter().flat_map(|connection| connection.left()).collect();
        Some((left.len(), left.iter().map(Claim::ttl).max()?))
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An application: a locker over a connection of its own.
pub(crate) struct Client {
    pub(crate) connection: Arc<Connection>,
    pub(crate) locker: Locker,
    /// The lock that the check is about.
    pub(crate) lock: Lock,
}

impl Client {
    /// The lock that the check is about, with waiters served in order where the driver can.
    pub(crate) fn queue(&self) -> BoxedLock {
        match self.lock.clone().fair() {
            Ok(fair) => Arc::new(fair),
            Err(_) => Arc::new(self.lock.clone()),
        }
    }
}

/// A lock of whatever kind.
pub(crate) type BoxedLock = Arc<dyn DistributedLock>;

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("tag", &self.tag).finish_non_exhaustive()
    }
}

fn hook(name: &str, outcome: Result<(), BoxError>) -> Verdict {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) => fail!("the hook `{name}` failed: {}", with_sources(&*error)),
    }
}
