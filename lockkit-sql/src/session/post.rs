use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Change, Claim, Grant, Instant, OwnerId, Release, Renewal};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};

use super::one::Session;
use super::registry::Outcome;
use super::server::{FailingStatement as _, Server};

/// After how long without a claim the session is ended.
const IDLE: Duration = Duration::from_secs(15);
/// How long to leave a server alone that has no session for us.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// A session that waits for one lock at a time, in the server's own queue, and then holds it.
///
/// While it waits, it can be asked for nothing else: [its attendant](attend) waits on behalf of the
/// claim, and whoever needs the session breaks the wait off through another one.
#[derive(Debug)]
pub(super) struct Post<S: Server> {
    session: Session<S>,
    desk: Mutex<Desk<S::Key>>,
    changed: Notify,
}

#[derive(Debug)]
struct Desk<K> {
    served: Option<Served<K>>,
    /// The post is not to be used before then.
    rests_until: Option<Instant>,
}

/// The claim that the post is for.
#[derive(Debug)]
struct Served<K> {
    key: K,
    claim: Claim,
    /// When the claim last did something. A claim that ceases to ask is not waited for.
    asked: Instant,
    /// Whether the claim has listened for news since it asked.
    listens: bool,
    phase: Phase,
}

/// Whether another claim can take the place of the one that is served.
type Displaceable = bool;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The session is to wait, once it stands.
    Wanted,
    /// The session waits, one statement after another.
    Waits,
    /// A request for the claim is under way, and the session is not to wait on its behalf.
    Aside,
    /// The session has the lock, but the claim has not heard of it.
    Granted(Grant),
    /// The claim holds the lock, as far as it knows.
    Holds,
    /// The session ended, or there is none.
    Fell,
    /// The claim is being released.
    Leaves,
}

impl<S: Server> Post<S> {
    pub(super) fn new(server: Arc<S>, ttl: Duration, runtime: Handle) -> Self {
        let session = Session::new(server, ttl, runtime);
        let desk = Mutex::new(Desk { served: None, rests_until: None });
        Self { session, desk, changed: Notify::new() }
    }

    pub(super) fn serves(&self, owner: OwnerId) -> bool {
        self.desk().served_for(owner).is_some()
    }

    pub(super) fn is_free(&self) -> bool {
        self.desk().is_free(self.now())
    }

    /// Whether the post waits for that lock, or has waited and nobody has heard of the outcome; and
    /// whether a claim that asks now can take the place of the one that is served.
    pub(super) fn is_for(&self, key: &S::Key) -> Option<Displaceable> {
        let desk = self.desk();
        let served = desk.served.as_ref().filter(|served| served.key == *key)?;
        match served.phase {
            Phase::Wanted | Phase::Waits | Phase::Granted(_) => Some(!served.listens),
            Phase::Aside => Some(false),
            Phase::Holds | Phase::Fell | Phase::Leaves => None,
        }
    }

    /// If the post is free, has its session wait for the claim, which was refused just now.
    pub(super) fn queue(&self, claim: &Claim, key: &S::Key) -> bool {
        let (asked, mut desk) = (self.now(), self.desk());
        let is_free = desk.is_free(asked);
        if is_free {
            let (key, claim) = (key.clone(), claim.clone());
            let phase = Phase::Wanted;
            desk.served = Some(Served { key, claim, asked, listens: false, phase });
            drop(desk);
            self.changed.notify_waiters();
        }
        is_free
    }

    /// Serves this claim instead of another one for the same lock that does not listen. Returns the
    /// owner of the other.
    pub(super) fn displace(&self, claim: &Claim) -> Option<OwnerId> {
        let (asked, mut desk) = (self.now(), self.desk());
        let served = desk.served.as_mut().filter(|served| !served.listens)?;
        served.phase = match served.phase {
            Phase::Waits => Phase::Waits,
            // What the other claim was granted is released before the next wait.
            Phase::Wanted | Phase::Granted(_) => Phase::Wanted,
            Phase::Aside | Phase::Holds | Phase::Fell | Phase::Leaves => return None,
        };
        served.asked = asked;
        let displaced = std::mem::replace(&mut served.claim, claim.clone());
        drop(desk);
        self.changed.notify_waiters();
        Some(displaced.owner())
    }

    /// Asks for the claim by this session; `None` if the main one is to be asked instead. If this
    /// session waits, the wait is broken off, and goes on afterwards.
    pub(super) async fn ask(
        &self,
        main: &Session<S>,
        key: &S::Key,
        claim: &Claim,
        limit: Duration,
    ) -> Option<Result<Outcome, S::Failure>> {
        let owner = claim.owner();
        let phase = self.come_to(owner, Phase::Aside)?;
        let left = match phase {
            Phase::Wanted => return None,
            Phase::Fell => {
                self.dismiss(owner);
                return None;
            }
            Phase::Waits | Phase::Aside => self.break_off(main, limit).await,
            Phase::Granted(_) | Phase::Holds | Phase::Leaves => limit,
        };
        let outcome = match left.is_zero() {
            true => Err(S::Failure::no_answer(limit)),
            false => self.session.take(key.clone(), claim, false, left).await,
        };
        let next = match &outcome {
            Ok(Outcome::Granted { .. }) => Phase::Holds,
            Ok(Outcome::Taken) => Phase::Wanted,
            // The request may yet be carried out, as long as the session stands.
            Err(_) if self.session.stands() => Phase::Aside,
            Err(_) => Phase::Fell,
        };
        match self.come_to(owner, next) {
            Some(_) => Some(outcome),
            // The request took so long that nobody is served any more. What it came to goes with
            // the session.
            None => {
                self.changed.notify_waiters();
                Some(Err(S::Failure::no_answer(limit)))
            }
        }
    }

    /// Waits again for the claim, for which the main session was asked in vain.
    pub(super) fn go_on(&self, claim: &Claim) -> bool {
        self.come_to(claim.owner(), Phase::Wanted).is_some()
    }

    pub(super) async fn renew(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Renewal, S::Failure> {
        self.session.renew(claim, limit).await
    }

    /// Leaves nothing of the claim on this session.
    pub(super) async fn release(
        &self,
        main: &Session<S>,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Release, S::Failure> {
        let phase = self.come_to(claim.owner(), Phase::Leaves);
        let left = match phase {
            None | Some(Phase::Wanted) => {
                self.dismiss(claim.owner());
                return Ok(Release::NotHeld);
            }
            // A release that is repeated may have found the session waiting.
            Some(Phase::Waits | Phase::Aside | Phase::Leaves) => self.break_off(main, limit).await,
            Some(Phase::Granted(_) | Phase::Holds | Phase::Fell) => limit,
        };
        if left.is_zero() {
            return Err(S::Failure::no_answer(limit));
        }
        let release = self.session.release(claim, left).await?;
        self.dismiss(claim.owner());
        Ok(release)
    }

    /// Whether a session of this post that ended may have a lock for that owner.
    pub(super) fn is_in_doubt(&self, owner: OwnerId) -> bool {
        self.session.is_in_doubt(owner)
    }

    /// Sees to it that no such session has one, whoever is served.
    pub(super) async fn settle(&self, owner: OwnerId, limit: Duration) -> Result<(), S::Failure> {
        self.session.settle(owner, limit).await
    }

    /// The next news for the claim.
    pub(super) async fn changed(&self, claim: &Claim) -> Change {
        let owner = claim.owner();
        loop {
            let mut news = pin!(self.changed.notified());
            // From here on, no notification is missed.
            news.as_mut().enable();
            let phase = self.desk().served_for(owner).map(|served| {
                served.listens = true;
                served.phase.clone()
            });
            match phase {
                Some(Phase::Granted(grant)) => {
                    let stands = self.session.holds_for(claim);
                    let next = if stands { Phase::Holds } else { Phase::Fell };
                    // The claim may have been dismissed by now.
                    if self.come_to(owner, next).is_some() && stands {
                        return Change::Granted(grant);
                    }
                }
                Some(Phase::Holds | Phase::Leaves) => {
                    self.session.lost(claim).await;
                    return Change::Lost;
                }
                Some(Phase::Fell) | None => {
                    self.dismiss(owner);
                    return Change::AskAgain;
                }
                Some(Phase::Wanted | Phase::Waits | Phase::Aside) => news.await,
            }
        }
    }

    /// Stops serving the claim, of which nothing is left here.
    pub(super) fn dismiss(&self, owner: OwnerId) {
        let mut desk = self.desk();
        if desk.served_for(owner).is_some() {
            desk.served = None;
            drop(desk);
            self.changed.notify_waiters();
        }
    }

    pub(super) async fn close(&self) {
        self.session.close().await;
    }

    /// Breaks off the session's wait, and returns when it no longer waits, with what is left of the
    /// limit. Tries more than once, since the session may only just be about to wait. Nothing that
    /// comes after the wait is broken off.
    async fn break_off(&self, main: &Session<S>, limit: Duration) -> Duration {
        const AGAIN: Duration = Duration::from_millis(100);
        let until = tokio::time::Instant::now() + limit;
        let is_idle = async {
            let mut idle = pin!(self.session.idle());
            let mut pause = Duration::ZERO;
            while timeout(pause, &mut idle).await.is_err() {
                if let Err(failure) = main.interrupt(&self.session, limit).await {
                    tracing::debug!(%failure, "a wait was not broken off");
                }
                pause = AGAIN;
            }
        };
        // If it cannot be broken off, whoever asks for the session learns that.
        _ = timeout_at(until, is_idle).await;
        until.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Has the claim come to that phase, and returns the one it was in.
    fn come_to(&self, owner: OwnerId, phase: Phase) -> Option<Phase> {
        let (now, mut desk) = (self.now(), self.desk());
        let served = desk.served_for(owner)?;
        (served.asked, served.listens) = (now, false);
        let before = std::mem::replace(&mut served.phase, phase);
        drop(desk);
        self.changed.notify_waiters();
        Some(before)
    }

    /// Notes that the session cannot wait for now.
    fn fail(&self, from: &Phase) {
        self.desk().rests_until = Some(self.now() + REFUSED_PAUSE);
        self.go(from, Phase::Fell);
    }

    /// Goes from one phase to the next, whoever is served.
    fn go(&self, from: &Phase, to: Phase) {
        let mut desk = self.desk();
        if let Some(served) = desk.served.as_mut().filter(|served| served.phase == *from) {
            served.phase = to;
            drop(desk);
            self.changed.notify_waiters();
        }
    }

    /// Notes that what the claim waited for was locked for it.
    fn grant(&self, claim: &Claim, grant: Grant) {
        let mut desk = self.desk();
        // Otherwise a request has found that out, or what is locked is released before the next
        // wait.
        if let Some(served) = desk.served_for(claim.owner())
            && served.phase == Phase::Waits
        {
            served.phase = Phase::Granted(grant);
            drop(desk);
            self.changed.notify_waiters();
        }
    }

    /// Dismisses a claim that has gone without a word.
    fn forget_the_silent(&self) {
        let (now, mut desk) = (self.now(), self.desk());
        if desk.served.as_ref().is_some_and(|served| {
            served.end() <= now && !matches!(served.phase, Phase::Wanted | Phase::Holds)
        }) {
            desk.served = None;
        }
    }

    /// The claim that the session is to wait for. One that has not asked for a long time is
    /// dismissed.
    fn awaited(&self) -> Option<Claim> {
        let (now, mut desk) = (self.now(), self.desk());
        let served = desk.served.as_ref().filter(|served| served.phase == Phase::Waits)?;
        if now < served.end() {
            return Some(served.claim.clone());
        }
        desk.served = None;
        None
    }

    fn now(&self) -> Instant {
        self.session.shared.clock.now()
    }

    fn desk(&self) -> MutexGuard<'_, Desk<S::Key>> {
        // Nothing panics while it holds the lock.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Desk<K> {
    fn is_free(&self, now: Instant) -> bool {
        self.served.is_none() && self.rests_until.is_none_or(|until| until <= now)
    }

    fn served_for(&mut self, owner: OwnerId) -> Option<&mut Served<K>> {
        self.served.as_mut().filter(|served| served.claim.owner() == owner)
    }
}

impl<K> Served<K> {
    /// When the claim is given up, unless it does something.
    fn end(&self) -> Instant {
        self.asked + self.claim.ttl()
    }
}

/// Waits on behalf of one claim after another.
pub(super) async fn attend<S: Server>(post: Arc<Post<S>>) {
    loop {
        until_wanted(&post).await;
        if let Err(failure) = post.session.open().await {
            tracing::debug!(%failure, "no session that waits; waiters ask");
            post.fail(&Phase::Wanted);
        }
        post.go(&Phase::Wanted, Phase::Waits);
        while let Some((claim, answer)) = post.session.wait(|| post.awaited()).await {
            match answer {
                Ok(Some(grant)) => post.grant(&claim, grant),
                Ok(None) => (),
                Err(failure) => {
                    tracing::debug!(%failure, "a session waits no more; its waiter asks");
                    post.fail(&Phase::Waits);
                }
            }
        }
    }
}

/// Returns when a claim is to be waited for. Until then, ends a session that is not needed, or that
/// holds what nobody knows of.
async fn until_wanted<S: Server>(post: &Post<S>) {
    loop {
        let mut news = pin!(post.changed.notified());
        // From here on, no notification is missed.
        news.as_mut().enable();
        let (is_served, silent_at) = match &post.desk().served {
            Some(Served { phase: Phase::Wanted, .. }) => return,
            Some(Served { phase: Phase::Holds, .. }) => (true, None),
            Some(served) => (true, Some(served.end())),
            None => (false, None),
        };
        if !is_served && post.session.holds_anything() {
            post.session.rest().await;
            continue;
        }
        match silent_at {
            Some(end) => tokio::select! {
                biased;
                () = news => (),
                () = post.session.shared.clock.sleep_until(end) => post.forget_the_silent(),
            },
            None => {
                let is_idle = timeout(IDLE, news).await.is_err();
                if is_idle && post.desk().served.is_none() {
                    post.session.rest().await;
                }
            }
        }
    }
}
