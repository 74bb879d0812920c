//! Nodes in memory that can go down, hang, and forget.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Inspect, Node, OwnerId, Release,
    Renewal, Run, Vouch,
};
use lockkit_core::memory::{self, Fault, MemoryDriver};
use lockkit_core::{Capabilities, Error, Fairness, LockName, Namespace, Operation};
use lockkit_redlock::{PARAMETERS, RedlockDriver, Settings};
use tokio::sync::Notify;
use tokio::time::sleep;

/// A claim to a lock that all of them want.
pub(crate) fn claim(ttl: Duration) -> Claim {
    claim_to("wanted", ttl)
}

pub(crate) fn claim_to(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), name).unwrap(), ttl)
}

pub(crate) async fn over(nodes: &[TestNode]) -> RedlockDriver {
    settings(nodes, "").await.unwrap()
}

pub(crate) async fn settings(nodes: &[TestNode], parameters: &str) -> Result<RedlockDriver, Error> {
    let url = format!("redlock:?{parameters}").parse().unwrap();
    let driver = RedlockDriver::builder().settings(Settings::from_url(&url, PARAMETERS).unwrap());
    let named = nodes.iter().enumerate();
    named
        .fold(driver, |driver, (at, node)| driver.node(format!("node {at}"), node.clone()))
        .connect()
        .await
}

pub(crate) fn nobody_there() -> Error {
    Error::connecting("test", DriverError::new(ErrorKind::Unreachable, "nobody there"))
}

/// How a node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Up,
    /// Refuses connections.
    Down,
    /// Refuses whoever asks.
    Denying,
    /// Does nothing with a request and never answers.
    Hung,
    /// Carries requests out and never answers.
    Mute,
    /// Carries requests out, and the connection breaks before the answer.
    Cut,
    /// Carries requests out so much later.
    Slow(Duration),
    /// Carries requests out within so much time.
    Fickle(Duration),
}

/// A memory driver with faults, which hands nothing over: of those who wait, a release tells one.
/// Clones are the same node.
#[derive(Clone, Debug)]
pub(crate) struct TestNode(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    mode: Mode,
    backend: MemoryDriver,
    run: Run,
    /// What it says instead of that, if it does not tell.
    silence: Option<ErrorKind>,
    requests: usize,
    asks: usize,
    grants: usize,
    vouch: Option<Duration>,
    restarts_at_the_next_ask: bool,
    tells_nobody: bool,
    closing: Closing,
    places: HashMap<LockName, VecDeque<OwnerId>>,
    mailboxes: HashMap<OwnerId, Arc<Notify>>,
}

/// What becomes of a node when the driver is closed.
#[derive(Debug, PartialEq, Eq)]
enum Closing {
    /// Others use it, too.
    StaysOpen,
    Closes,
    Closed,
}

impl TestNode {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            mode: Mode::Up,
            backend: MemoryDriver::new(),
            run: new_run().lasting(Duration::from_secs(3600)),
            silence: None,
            requests: 0,
            asks: 0,
            grants: 0,
            vouch: None,
            restarts_at_the_next_ask: false,
            tells_nobody: false,
            closing: Closing::StaysOpen,
            places: HashMap::new(),
            mailboxes: HashMap::new(),
        })))
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.0.lock().unwrap().mode = mode;
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.backend.is_idle() && state.places.is_empty() && state.mailboxes.is_empty()
    }

    /// How many listen to it.
    pub(crate) fn listeners(&self) -> usize {
        self.0.lock().unwrap().mailboxes.len()
    }

    /// How many requests of all kinds have come.
    pub(crate) fn requests(&self) -> usize {
        self.0.lock().unwrap().requests
    }

    /// How many asks have come.
    pub(crate) fn asks(&self) -> usize {
        self.0.lock().unwrap().asks
    }

    /// How many asks it has granted.
    pub(crate) fn grants(&self) -> usize {
        self.0.lock().unwrap().grants
    }

    /// Its leases last only for so long from now on.
    pub(crate) fn vouch_for(&self, ttl: Duration) {
        self.0.lock().unwrap().vouch = Some(ttl);
    }

    /// Loses its locks without a restart.
    pub(crate) fn forget(&self) {
        let mut state = self.0.lock().unwrap();
        state.backend = MemoryDriver::new();
        state.places.clear();
        state.mailboxes.clear();
    }

    pub(crate) fn restart_empty(&self) {
        self.forget();
        self.0.lock().unwrap().run = new_run();
    }

    pub(crate) fn is_durable(&self) {
        let mut state = self.0.lock().unwrap();
        state.run = state.run.clone().durable();
    }

    /// The same run, which forgets from now on.
    pub(crate) fn is_durable_no_more(&self) {
        let mut state = self.0.lock().unwrap();
        state.run = Run::new(state.run.id()).lasting(state.run.age());
    }

    /// The next release to it arrives so much later.
    pub(crate) fn delays_a_release(&self, delay: Duration) {
        let state = self.0.lock().unwrap();
        state.backend.faults().inject(Operation::Release, Fault::Delay(delay));
    }

    /// The answer to the next ask that it carries out is lost.
    pub(crate) fn loses_the_answer_to_an_ask(&self) {
        let state = self.0.lock().unwrap();
        state.backend.faults().inject(Operation::Acquire, Fault::LoseAnswer);
    }

    pub(crate) fn restart_durable(&self) {
        self.0.lock().unwrap().run = new_run().durable();
    }

    pub(crate) fn has_run_for(&self, age: Duration) {
        let mut state = self.0.lock().unwrap();
        state.run = state.run.clone().lasting(age);
    }

    /// Another name of the same backend, by what it tells.
    pub(crate) fn is_in_the_run_of(&self, other: &Self) {
        let run = other.0.lock().unwrap().run.clone();
        self.0.lock().unwrap().run = run;
    }

    pub(crate) fn is_a_replica(&self) {
        let mut state = self.0.lock().unwrap();
        state.run = state.run.clone().replica();
    }

    /// Does not tell which run it is in: it says so, or is too slow.
    pub(crate) fn tells_no_run(&self, kind: ErrorKind) {
        self.0.lock().unwrap().silence = Some(kind);
    }

    pub(crate) fn restarts_at_the_next_ask(&self) {
        self.0.lock().unwrap().restarts_at_the_next_ask = true;
    }

    /// Once the driver is closed it takes no more requests.
    pub(crate) fn closes(&self) {
        self.0.lock().unwrap().closing = Closing::Closes;
    }

    /// Who listens there is told of nothing.
    pub(crate) fn tells_nobody(&self) {
        self.0.lock().unwrap().tells_nobody = true;
    }

    /// What is looked at, once the node answers.
    async fn inspected(&self) -> Result<MemoryDriver, DriverError> {
        let (mode, backend) = {
            let state = self.0.lock().unwrap();
            (state.mode, state.backend.clone())
        };
        match mode {
            Mode::Down => return Err(is_down()),
            Mode::Denying => return Err(denied()),
            Mode::Slow(delay) => sleep(delay).await,
            _ => (),
        }
        Ok(backend)
    }

    async fn request<T>(
        &self,
        claim: &Claim,
        carry_out: impl AsyncFnOnce(MemoryDriver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let backend = || self.0.lock().unwrap().backend.clone();
        let unanswered = || DriverError::new(ErrorKind::Unknown, "no answer");
        let mode = {
            let mut state = self.0.lock().unwrap();
            state.requests += 1;
            if state.closing == Closing::Closed {
                return Err(DriverError::new(ErrorKind::Unreachable, "the driver is closed"));
            }
            state.mode
        };
        match mode {
            Mode::Up => carry_out(backend()).await,
            Mode::Down => Err(is_down()),
            Mode::Denying => Err(denied()),
            Mode::Hung => {
                sleep(claim.call_limit()).await;
                Err(unanswered())
            }
            Mode::Mute => {
                carry_out(backend()).await?;
                sleep(claim.call_limit()).await;
                Err(unanswered())
            }
            Mode::Cut => {
                carry_out(backend()).await?;
                Err(unanswered())
            }
            Mode::Fickle(most) => {
                sleep(most.mul_f64(fastrand::f64())).await;
                carry_out(backend()).await
            }
            Mode::Slow(delay) => {
                sleep(delay).await;
                carry_out(backend()).await
            }
        }
    }
}

impl State {
    fn is_refused(&mut self, claim: &Claim) {
        let owner = claim.owner();
        let places = self.places.entry(claim.name().clone()).or_default();
        let was_told = self.mailboxes.insert(owner, Arc::default()).is_some();
        match places.contains(&owner) {
            true => (),
            // Another was faster: it is the next to be told.
            false if was_told => places.push_front(owner),
            false => places.push_back(owner),
        }
    }

    fn leave(&mut self, name: &LockName, owner: OwnerId) {
        if let Some(places) = self.places.get_mut(name) {
            places.retain(|waiting| *waiting != owner);
            if places.is_empty() {
                self.places.remove(name);
            }
        }
    }

    /// The lock was released.
    fn tell_one(&mut self, name: &LockName) {
        let Some(places) = self.places.get_mut(name) else { return };
        let first = places.pop_front();
        if places.is_empty() {
            self.places.remove(name);
        }
        if let Some(mailbox) = first.and_then(|first| self.mailboxes.get(&first)) {
            mailbox.notify_one();
        }
    }
}

fn is_down() -> DriverError {
    DriverError::new(ErrorKind::Unreachable, "it is down")
}

fn denied() -> DriverError {
    DriverError::new(ErrorKind::Denied, "not for you")
}

fn new_run() -> Run {
    Run::new(lockkit_core::driver::OwnerId::random().to_string())
}

#[async_trait]
impl Driver for TestNode {
    fn id(&self) -> &'static str {
        "test"
    }

    fn capabilities(&self) -> Capabilities {
        memory::CAPABILITIES.fairness(Fairness::OnRequest)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.0.lock().unwrap().asks += 1;
        let take = async |backend: MemoryDriver| {
            let attempt = backend.try_acquire(&claim.clone().not_waiting()).await?;
            let mut state = self.0.lock().unwrap();
            Ok(match attempt {
                Attempt::Taken(taken) if claim.listens() && !state.tells_nobody => {
                    state.is_refused(claim);
                    Attempt::Taken(taken.heard())
                }
                Attempt::Granted(_) => {
                    state.mailboxes.remove(&claim.owner());
                    state.leave(claim.name(), claim.owner());
                    attempt
                }
                attempt => attempt,
            })
        };
        let attempt = self.request(claim, take).await?;
        let mut state = self.0.lock().unwrap();
        if std::mem::take(&mut state.restarts_at_the_next_ask) {
            state.run = new_run();
        }
        Ok(match attempt {
            Attempt::Granted(grant) => {
                state.grants += 1;
                let vouch = |ttl| Vouch::Lease { since: claim.now(), ttl };
                Attempt::Granted(
                    state
                        .vouch
                        .map(vouch)
                        .into_iter()
                        .fold(grant, |grant, vouch| grant.vouch(vouch)),
                )
            }
            other => other,
        })
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let renewal = self.request(claim, async |backend| backend.renew(claim).await).await?;
        let vouch = self.0.lock().unwrap().vouch;
        Ok(match (renewal, vouch) {
            (Renewal::Held(_), Some(ttl)) => {
                Renewal::Held(Vouch::Lease { since: claim.now(), ttl })
            }
            (other, _) => other,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let release = async |backend: MemoryDriver| {
            let (name, answer) = (claim.name(), backend.release(claim).await?);
            let is_free = backend.look(name).await?.holder().is_none();
            let mut state = self.0.lock().unwrap();
            state.leave(name, claim.owner());
            if is_free {
                state.tell_one(name);
            }
            Ok(answer)
        };
        // Of a claim that does not listen there is none.
        if claim.listens() {
            self.0.lock().unwrap().mailboxes.remove(&claim.owner());
        }
        self.request(claim, release).await
    }

    async fn close(&self) {
        let mut state = self.0.lock().unwrap();
        if state.closing == Closing::Closes {
            state.closing = Closing::Closed;
        }
    }

    async fn changed(&self, claim: &Claim) -> Change {
        let mailbox = self.0.lock().unwrap().mailboxes.get(&claim.owner()).cloned();
        match mailbox {
            Some(mailbox) => mailbox.notified().await,
            None => std::future::pending().await,
        }
        Change::AskAgain
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn node(&self) -> Option<&dyn Node> {
        Some(self)
    }
}

#[async_trait]
impl Node for TestNode {
    async fn run(&self, limit: Duration) -> Result<Run, DriverError> {
        let silence = self.0.lock().unwrap().silence;
        let Some(kind) = silence else { return Ok(self.0.lock().unwrap().run.clone()) };
        if kind.is_transient() {
            sleep(limit).await;
        }
        Err(DriverError::new(kind, "not for you"))
    }
}

#[async_trait]
impl Inspect for TestNode {
    async fn look(&self, name: &LockName) -> Result<lockkit_core::LockStatus, DriverError> {
        self.inspected().await?.look(name).await
    }

    async fn held(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<lockkit_core::LockStatus>, DriverError> {
        self.inspected().await?.held(namespace).await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<lockkit_core::driver::OwnerId>,
    ) -> Result<Option<lockkit_core::Holder>, DriverError> {
        self.inspected().await?.break_hold(name, owner).await
    }

    async fn diagnose(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<lockkit_core::Diagnosis>, DriverError> {
        self.inspected().await?.diagnose(namespace).await
    }
}
