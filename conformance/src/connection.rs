use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Instant, OwnerId,
    Release, Renewal, Taken, Vouch,
};
use lockkit_core::{
    Capabilities, Diagnosis, FencingToken, Holder, LockName, LockStatus, Namespace, Operation,
};
use tokio::sync::watch;

use crate::asks::Asks;
use crate::context::{Context, Verdict};
use crate::run::Pulse;

/// A connection to the driver under test: the driver itself, with a memory of what was asked and
/// answered over it, and the ability to lose answers.
#[derive(Debug)]
pub(crate) struct Connection {
    driver: Arc<dyn Driver>,
    pulse: Arc<Pulse>,
    asks: Arc<Asks>,
    events: watch::Sender<Vec<Event>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was asked for and not released.
    left: HashMap<OwnerId, Claim>,
    /// How many of the next answers get lost.
    lost: HashMap<Operation, usize>,
}

/// What a driver has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Granted(OwnerId),
    Refused(OwnerId),
    Changed(OwnerId),
    Renewed(OwnerId),
    Released(OwnerId),
    Failed(OwnerId, Operation),
}

impl Connection {
    pub(crate) fn new(driver: Arc<dyn Driver>, pulse: Arc<Pulse>, asks: Arc<Asks>) -> Self {
        Self { driver, pulse, asks, events: watch::Sender::default(), state: Mutex::default() }
    }

    /// Asks for a lock that is free, or the claim's own.
    pub(crate) async fn take(&self, claim: &Claim) -> Verdict<Grant> {
        match self.try_acquire(claim).await? {
            Attempt::Granted(grant) => Ok(grant),
            _ => fail!("a lock that was free or the claim's own was refused"),
        }
    }

    /// Asks for a free lock on a driver that gives tokens.
    pub(crate) async fn take_token(&self, claim: &Claim) -> Verdict<FencingToken> {
        match self.take(claim).await?.fencing_token() {
            Some(token) => Ok(token),
            None => fail!("a grant has no fencing token, although the driver declares them"),
        }
    }

    /// Asks for a lock that should be refused; `why` completes "was granted, although".
    pub(crate) async fn is_refused(&self, claim: &Claim, why: &str) -> Verdict<Taken> {
        match self.try_acquire(claim).await? {
            Attempt::Taken(taken) => Ok(taken),
            _ => refute!("the lock was granted, although {why}"),
        }
    }

    /// Renews a hold that should stand.
    pub(crate) async fn keep(&self, claim: &Claim) -> Verdict {
        self.keep_vouched(claim).await.map(drop)
    }

    /// The same, and says what the driver vouches for.
    pub(crate) async fn keep_vouched(&self, claim: &Claim) -> Verdict<Vouch> {
        match self.renew(claim).await? {
            Renewal::Held(vouch) => Ok(vouch),
            _ => fail!("the renewal of a hold that stands was answered `Lost`"),
        }
    }

    /// Renews what is not a hold; `why` completes "was renewed, although".
    pub(crate) async fn is_lost(&self, claim: &Claim, why: &str) -> Verdict {
        match self.renew(claim).await? {
            Renewal::Lost => Ok(()),
            _ => refute!("a claim was renewed, although {why}"),
        }
    }

    /// Renews a hold that stands, whatever was done to others; `what` did it if this one ended.
    pub(crate) async fn is_kept(&self, claim: &Claim, what: &str) -> Verdict {
        match self.renew(claim).await? {
            Renewal::Lost => refute!("{what}"),
            _ => Ok(()),
        }
    }

    /// Asks again and again, as a client that does not listen would, until the lock is granted.
    pub(crate) async fn ask_until_granted(
        &self,
        context: &Context,
        claim: &Claim,
        limit: Duration,
    ) -> Verdict<Freed> {
        let pause = (context.ttl() / 100).max(Duration::from_millis(2));
        let (begun, mut refused) = (claim.now(), None);
        loop {
            let asked = claim.now();
            match self.try_acquire(claim).await {
                Ok(Attempt::Granted(_)) => return Ok(Freed { refused, granted: claim.now() }),
                Ok(_) => refused = Some(asked),
                // One ask of many.
                Err(error) if error.kind().is_transient() => (),
                Err(error) => return Err(error.into()),
            }
            ensure!(
                asked.saturating_duration_since(begun) < limit,
                "the lock was not free after {limit:?}"
            );
            tokio::time::sleep(pause).await;
        }
    }

    /// Goes on after a refusal as the engine does, but without polling: asks again only when the
    /// driver says that there is news.
    pub(crate) async fn listen_until_granted(&self, claim: &Claim) -> Verdict<Grant> {
        // A driver may be wrong about news now and then.
        for _ in 0..1000 {
            match self.changed(claim).await {
                Change::Granted(grant) => return Ok(grant),
                Change::Lost => fail!("the driver says that the place of a waiter was lost"),
                _ => (),
            }
            if let Attempt::Granted(grant) = self.try_acquire(claim).await? {
                return Ok(grant);
            }
        }
        fail!("the driver told of news 1,000 times, and each time the lock was taken")
    }

    /// The same while the connection may be cut: an ask may need more than one try, and a hold that
    /// ends with a connection may be over again. Ends early if the driver cannot tell the claim of
    /// anything for now.
    pub(crate) async fn listen_through_trouble(&self, context: &Context, claim: &Claim) -> Verdict {
        for _ in 0..1000 {
            if let Change::Granted(_) = self.changed(claim).await {
                return Ok(());
            }
            match context.after_trouble(async || self.try_acquire(claim).await).await? {
                Attempt::Taken(taken) if !taken.is_unheard() => (),
                _ => return Ok(()),
            }
        }
        fail!("the driver told of news 1,000 times, and each time the lock was taken")
    }

    /// Asks for a free lock while the backend may be out of reach for a moment.
    pub(crate) async fn take_after_trouble(
        &self,
        context: &Context,
        claim: &Claim,
    ) -> Verdict<Grant> {
        match context.after_trouble(async || self.try_acquire(claim).await).await? {
            Attempt::Granted(grant) => Ok(grant),
            _ => fail!("a lock that was free or the claim's own was refused"),
        }
    }

    /// Looks at a lock.
    pub(crate) async fn look(&self, name: &LockName) -> Verdict<LockStatus> {
        let status = self.inspection()?.look(name).await?;
        ensure!(status.name() == name, "a look at {name:?} tells of {:?}", status.name());
        Ok(status)
    }

    /// Lists the held locks of a namespace.
    pub(crate) async fn held(&self, namespace: &Namespace) -> Verdict<Vec<LockStatus>> {
        Ok(self.inspection()?.held(namespace).await?)
    }

    /// Breaks a hold, or only that of `owner` if one is named.
    pub(crate) async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Verdict<Option<Holder>> {
        Ok(self.inspection()?.break_hold(name, owner).await?)
    }

    /// Diagnoses the backend.
    pub(crate) async fn diagnose(&self, namespace: &Namespace) -> Verdict<Vec<Diagnosis>> {
        Ok(self.inspection()?.diagnose(namespace).await?)
    }

    /// The driver's part that looks and breaks.
    pub(crate) fn inspection(&self) -> Verdict<&dyn Inspect> {
        match self.driver.inspect() {
            Some(inspect) => Ok(inspect),
            None => fail!("the driver declares inspection, and has none"),
        }
    }

    /// All that happened over the connection.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    /// Returns once what happened is as `enough` wants it.
    pub(crate) async fn until(&self, enough: impl Fn(&[Event]) -> bool) {
        // The sender lives as long as `self`.
        _ = self.events.subscribe().wait_for(|events| enough(events)).await;
    }

    /// Has the next `count` requests of this kind carried out, and their answers lost.
    pub(crate) fn lose_answers(&self, operation: Operation, count: usize) {
        self.state().lost.insert(operation, count);
    }

    /// What was asked for and not released.
    pub(crate) fn left(&self) -> Vec<Claim> {
        self.state().left.values().cloned().collect()
    }

    /// Releases what is left, without a record of it. A connection that was cut may find out by the
    /// first request.
    pub(crate) async fn let_go(&self, claim: &Claim) -> Verdict {
        match self.driver.release(claim).await {
            Err(error) if error.kind().is_transient() => self.driver.release(claim).await?,
            released => released?,
        };
        self.state().left.remove(&claim.owner());
        Ok(())
    }

    /// Closes the driver, and keeps in mind what is left.
    pub(crate) async fn end(&self) {
        self.driver.close().await;
    }

    /// A session may be shorter than the lease that was asked for.
    fn note_vouch(&self, vouch: Vouch) {
        if let Vouch::Lease { ttl, .. } = vouch {
            self.pulse.note_lease(ttl);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happened(&self, event: Event) {
        self.events.send_modify(|events| events.push(event));
    }

    /// Writes down what the driver answered, or loses it.
    fn answer<T>(
        &self,
        operation: Operation,
        claim: &Claim,
        answer: Result<T, DriverError>,
        event: impl FnOnce(&T) -> Event,
    ) -> Result<T, DriverError> {
        let is_lost = match self.state().lost.get_mut(&operation) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        };
        let answer = match answer {
            Ok(_) if is_lost => Err(DriverError::new(ErrorKind::Unknown, "lost by the check")),
            answer => answer,
        };
        self.happened(match &answer {
            Ok(answer) => event(answer),
            Err(_) => Event::Failed(claim.owner(), operation),
        });
        answer
    }
}

/// A lock that was taken became free.
#[derive(Debug)]
pub(crate) struct Freed {
    /// When the last ask that was refused left.
    pub(crate) refused: Option<Instant>,
    /// When the answer that granted it came.
    pub(crate) granted: Instant,
}

#[async_trait]
impl Driver for Connection {
    fn id(&self) -> &'static str {
        self.driver.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let _ask = self.asks.begin(claim.name().namespace())?;
        self.state().left.insert(claim.owner(), claim.clone());
        self.pulse.note_lease(claim.ttl());
        let answer = self.pulse.answer(self.driver.try_acquire(claim)).await;
        if let Ok(Attempt::Granted(grant)) = &answer {
            self.note_vouch(grant.vouched());
        }
        if matches!(answer, Ok(Attempt::Taken(_))) && !claim.waits() {
            self.state().left.remove(&claim.owner());
        }
        self.answer(Operation::Acquire, claim, answer, |answer| match answer {
            Attempt::Granted(_) => Event::Granted(claim.owner()),
            _ => Event::Refused(claim.owner()),
        })
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let answer = self.pulse.answer(self.driver.renew(claim)).await;
        if let Ok(Renewal::Held(vouch)) = answer {
            self.note_vouch(vouch);
        }
        self.answer(Operation::Renew, claim, answer, |_| Event::Renewed(claim.owner()))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let answer = self.pulse.answer(self.driver.release(claim)).await;
        if answer.is_ok() {
            self.state().left.remove(&claim.owner());
        }
        self.answer(Operation::Release, claim, answer, |_| Event::Released(claim.owner()))
    }

    async fn changed(&self, claim: &Claim) -> Change {
        let change = self.driver.changed(claim).await;
        if let Change::Granted(grant) = &change {
            self.note_vouch(grant.vouched());
        }
        self.happened(Event::Changed(claim.owner()));
        change
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        self.driver.inspect()
    }

    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        self.driver.descriptor(claim).await
    }

    async fn close(&self) {
        // What is left ends by itself.
        self.state().left.clear();
        self.driver.close().await;
    }
}
