//! The state of one hold, shared by its guards and its keeper.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::clock::{Instant, earlier};
use crate::driver::{Claim, Grant, Vouch};
use crate::engine::Engine;
use crate::keeper::Remains;
use crate::{FencingToken, keeper, meter};

#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) engine: Arc<Engine>,
    pub(crate) claim: Claim,
    pub(crate) token: Option<FencingToken>,
    pub(crate) replicas: Option<u32>,
    /// When a request had left that was never answered and may still take the lock.
    in_doubt: Option<Instant>,
    /// When the maximum hold is over.
    latest: Option<Instant>,
    standing: Mutex<Standing>,
    metered: meter::Holding,
    /// Rung at every change of `standing`.
    news: Notify,
}

/// How a hold stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// Whether there is a keeper, to clear up after the hold.
    kept: bool,
    /// How long the hold is good for.
    pub(crate) vouched: Vouched,
    /// The lease to wish for at the next renewal.
    pub(crate) wished: Duration,
    /// The longest lease that was ever asked for: how long the backend may keep the hold.
    pub(crate) longest: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    /// For good: what is lost never counts as held again.
    Lost,
    /// Its last guard was dropped: the keeper releases.
    Dropped,
    /// Its last guard was released: the caller releases.
    Released,
}

/// A [`Vouch`] on the engine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vouched {
    pub(crate) since: Instant,
    /// How long the hold lasts between renewals, as granted.
    pub(crate) ttl: Duration,
    /// `None` for as long as the process lives.
    pub(crate) until: Option<Instant>,
}

impl Vouched {
    /// What `vouch`, the answer to a request sent at `asked`, is worth: a lease, less what two
    /// clocks may drift apart, which is 1 % and 2 ms.
    pub(crate) fn new(vouch: Vouch, asked: Instant, wished: Duration) -> Self {
        let lease = |since: Instant, ttl: Duration| {
            let margin = ttl / 100 + Duration::from_millis(2);
            Self { since, ttl, until: Some(since + ttl.saturating_sub(margin)) }
        };
        match vouch {
            Vouch::FromRequest => lease(asked, wished),
            Vouch::Lease { since, ttl } => lease(since, ttl),
            Vouch::WhileAlive => Self { since: asked, ttl: wished, until: None },
        }
    }

    pub(crate) fn is_good_at(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Tenure {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        grant: &Grant,
        mut vouched: Vouched,
        in_doubt: Option<Instant>,
        max_hold: Option<Duration>,
    ) -> Self {
        let latest = max_hold.map(|longest| engine.clock.now() + longest);
        vouched.until = earlier(vouched.until, latest);
        let (wished, longest) = (claim.ttl(), claim.ttl());
        let standing = Standing { phase: Phase::Held, kept: false, vouched, wished, longest };
        let (standing, news) = (Mutex::new(standing), Notify::new());
        let metered = meter::Holding::begin(&engine, claim.name());
        let (token, replicas) = (grant.fencing_token(), grant.acknowledged_by());
        Self { engine, claim, token, replicas, in_doubt, latest, standing, metered, news }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.standing().phase == Phase::Held
    }

    /// Looks at the clock, so that a stalled runtime reads as lost, not as held.
    pub(crate) fn standing(&self) -> Standing {
        self.standing_at(self.engine.clock.now())
    }

    /// The same at less cost, but blind to a suspension within the last second: for decisions that
    /// are followed by the backend's answer or by another look.
    pub(crate) fn glance(&self) -> Standing {
        self.standing_at(self.engine.clock.stamp())
    }

    /// Whether its end has been noticed.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().phase != Phase::Held
    }

    /// What is left of it at the backend once it is over.
    pub(crate) fn remains(&self, was_held: bool) -> Remains {
        Remains { longest: self.lock().longest, in_doubt: self.in_doubt, was_held }
    }

    fn standing_at(&self, now: Instant) -> Standing {
        let mut standing = self.lock();
        let expired = !standing.vouched.is_good_at(now);
        if standing.phase == Phase::Held && expired {
            drop(standing);
            self.lose();
            standing = self.lock();
        }
        *standing
    }

    /// Lengthens the hold, unless it has ended: whoever saw that it had ended must not see it
    /// revived.
    pub(crate) fn vouch(&self, vouched: Vouched) {
        let mut standing = self.lock();
        if standing.phase != Phase::Held {
            return;
        }
        let until = match (standing.vouched.until, vouched.until) {
            (Some(old), Some(new)) => Some(old.max(new)),
            _ => vouched.until,
        };
        // Answers can overtake each other.
        let newest =
            if vouched.since < standing.vouched.since { standing.vouched } else { vouched };
        standing.vouched = Vouched { until: earlier(until, self.latest), ..newest };
        drop(standing);
        self.tell();
    }

    /// Notes that a lease of this length is asked for.
    pub(crate) fn ask_for(&self, ttl: Duration) {
        let mut standing = self.lock();
        standing.longest = standing.longest.max(ttl);
    }

    /// Makes renewals ask for this from now on.
    pub(crate) fn wish(&self, ttl: Duration) {
        self.lock().wished = ttl;
    }

    pub(crate) fn lose(&self) {
        if self.end(Phase::Lost) {
            self.engine.tell_of_loss(&self.claim);
        }
    }

    /// Ends the hold and says whether it was held until now. A hold that no caller releases and
    /// that has no keeper is released by a task.
    pub(crate) fn end(&self, how: Phase) -> bool {
        let ended = self.end_quietly(how);
        if ended {
            self.tell();
        }
        ended
    }

    /// The same, but leaves it to the caller to [tell](Self::tell) of it.
    pub(crate) fn end_quietly(&self, how: Phase) -> bool {
        // Held until a task has the release.
        let _under_way = self.engine.under_way();
        let mut standing = self.lock();
        if standing.phase != Phase::Held {
            return false;
        }
        standing.phase = how;
        let kept = standing.kept || how == Phase::Released;
        drop(standing);
        self.metered.end(&self.engine, self.claim.name());
        if !kept {
            self.release_in_a_task(how == Phase::Dropped);
        }
        true
    }

    fn release_in_a_task(&self, was_held: bool) {
        let (engine, claim) = (Arc::clone(&self.engine), self.claim.clone());
        let remains = self.remains(was_held);
        self.engine.spawn(async move {
            keeper::clear_up(&engine, &claim, remains, |_| ()).await;
        });
    }

    /// Wakes all who watch how the hold stands.
    pub(crate) fn tell(&self) {
        self.news.notify_waiters();
    }

    /// Whether anything has to be done for the hold that soon.
    pub(crate) fn needs_keeper_within(&self, soon: Duration) -> bool {
        let vouched = self.lock().vouched;
        let next = earlier(Some(vouched.since + vouched.ttl / 3), vouched.until);
        next <= Some(self.engine.clock.stamp() + soon)
    }

    /// Gives the hold a keeper, unless it has ended.
    pub(crate) fn adopt(self: &Arc<Self>) -> Option<Kept> {
        let mut standing = self.lock();
        standing.kept = standing.phase == Phase::Held;
        standing.kept.then(|| Kept(Arc::clone(self)))
    }

    /// Returns how the hold stands and a future that resolves at the next change.
    pub(crate) fn watch(&self) -> (Standing, Notified<'_>) {
        // Made first, so that it misses no change after the look.
        let change = self.news.notified();
        (self.glance(), change)
    }

    /// Returns when the hold is good for no longer than `left`, or has ended, however that came
    /// about.
    pub(crate) async fn ends_within(&self, left: Duration) {
        loop {
            let now = self.engine.clock.stamp();
            let (standing, change) = self.watch();
            let good_for = standing.vouched.until.map(|until| until.saturating_duration_since(now));
            if standing.phase != Phase::Held || good_for.is_some_and(|good_for| good_for <= left) {
                return;
            }
            let then = good_for.map(|good_for| now + (good_for - left));
            tokio::select! {
                biased;
                // First: the end of the keeper's runtime ends the hold, and then its timers.
                () = change => (),
                () = self.engine.clock.sleep_until_some(then) => (),
            }
        }
    }

    /// No step under the lock panics.
    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hold that has a keeper: whatever ends the keeper, the end of its runtime included, ends the
/// hold.
pub(crate) struct Kept(Arc<Tenure>);

impl Deref for Kept {
    type Target = Tenure;

    fn deref(&self) -> &Tenure {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let phase = {
            let mut standing = self.0.lock();
            standing.kept = false;
            standing.phase
        };
        match phase {
            Phase::Held => self.0.lose(),
            // A keeper that its driver's panic has ended does not clear up any more. It may have
            // begun: what is not there now need not have been lost.
            Phase::Lost | Phase::Dropped if thread::panicking() => self.0.release_in_a_task(false),
            Phase::Lost | Phase::Dropped | Phase::Released => (),
        }
    }
}

/// News of a hold: those who watch it are told when this is dropped.
pub(crate) struct Untold<'a>(pub(crate) &'a Tenure);

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        self.0.tell();
    }
}
