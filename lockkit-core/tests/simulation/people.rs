//! Those who use locks, in every way that there is, and what they see.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lockkit_core::driver::{self, Clock, OwnerId};
use lockkit_core::{
    AcquireOptions, Error, Fairness, FencingToken, Lease, LeasedGuard, LockGuard, LockName, Locker,
    Owner, Renew, Result, Wait,
};
use tokio::select;
use tokio::time::{Instant, sleep, timeout};

use crate::society::{Belief, Society};
use crate::world::up_to;

/// How late something may be that a timer ends: these have milliseconds, and tasks take turns.
const SLACK: Duration = Duration::from_millis(5);
/// The longest that a request and its answer take in a calm, and a little more.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// The longest that a driver lets a request take.
const LONGEST_CALL: Duration = Duration::from_secs(3);
/// What is awaited and takes longer than so many leases hangs, unless it may wait for ever.
const HANGS: u32 = 20;

/// Somebody who uses locks.
pub(crate) struct Person {
    society: Arc<Society>,
    run: Run,
    rng: Rng,
}

/// What the people of one run of a process share.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) locker: Locker,
    pub(crate) owner: Owner,
    pub(crate) clock: Clock,
    /// Whether the locker is shut down, which ends all holds.
    pub(crate) leaving: Arc<AtomicBool>,
}

/// What somebody does with a future.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Polls it some times, and drops it.
    Polls(usize),
    /// Begins it, leaves it alone for a while, and then awaits it.
    Pauses(Duration),
    /// Drops it if it takes longer.
    Ends(Duration),
    Awaits,
}

/// An acquisition.
struct Wish {
    name: String,
    wait: Wait,
    options: AcquireOptions,
    is_reentry: bool,
    patience: Patience,
    began: Instant,
    /// When that was by the clock of the process.
    called: driver::Instant,
    /// The highest token that anybody had by then.
    highest: Option<FencingToken>,
}

/// A lock that is held.
struct Held {
    guard: Guard,
    belief: Belief,
    terms: Terms,
    since: Instant,
    /// Whether others may be the same owner.
    is_shared: bool,
    /// Whether a request that was not answered may take the lock again.
    in_doubt: bool,
}

/// What ends a hold beside its release.
#[derive(Clone, Copy, Default)]
struct Terms {
    is_not_renewed: bool,
    longest: Option<Duration>,
}

impl Terms {
    fn has_an_end(self) -> bool {
        self.is_not_renewed || self.longest.is_some()
    }
}

enum Guard {
    Plain(LockGuard),
    Leased(LeasedGuard),
}

impl Guard {
    fn plain(&self) -> &LockGuard {
        match self {
            Self::Plain(guard) => guard,
            Self::Leased(guard) => guard,
        }
    }
}

impl Person {
    pub(crate) fn new(society: Arc<Society>, run: Run, rng: Rng) -> Self {
        Self { society, run, rng }
    }

    pub(crate) async fn live(mut self, turns: usize) {
        for _ in 0..turns {
            let ttl = self.society.ttl;
            sleep(self.up_to(ttl / 4)).await;
            if let Some(held) = self.acquire().await {
                self.work(&held).await;
                self.let_go(held).await;
            }
        }
    }

    /// Whether a hold may end that nobody lets go of.
    fn may_lose(&self) -> bool {
        !self.society.is_calm || self.is_leaving()
    }

    fn is_leaving(&self) -> bool {
        self.run.leaving.load(Ordering::Relaxed)
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        up_to(&mut self.rng, longest)
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.rng.u32(..many) == 0
    }

    async fn acquire(&mut self) -> Option<Held> {
        let wish = self.wish();
        let (outcome, terms) = self.attempt(&wish).await;
        let Some(outcome) = outcome else {
            if wish.wait != Wait::Forever {
                self.judge_drop(wish.patience, || format!("{}: {:?}", wish.name, wish.wait));
            }
            self.society.count("dropped acquisitions");
            self.society.network.history.note(|| format!("{} is not wanted any more", wish.name));
            return None;
        };
        self.judge_time(&wish);
        match outcome {
            Ok(guard) => Some(self.hold(&wish, guard, terms)),
            Err(error) => {
                self.judge_failure(&wish, &error);
                None
            }
        }
    }

    fn wish(&mut self) -> Wish {
        let (ttl, name) = (self.society.ttl, self.rng.choice(&self.society.names).unwrap().clone());
        let limit = self.up_to(ttl * 2);
        let wait = match self.rng.u32(..4) {
            0 => Wait::No,
            1 => Wait::Forever,
            _ => Wait::AtMost(limit),
        };
        let mut options = AcquireOptions::new().wait(wait);
        if self.one_in(6) {
            options = options.ttl(ttl / 2 + self.up_to(ttl));
        }
        Wish {
            highest: self.society.highest(&name),
            name,
            wait,
            options,
            is_reentry: self.one_in(5),
            patience: self.patience(),
            began: Instant::now(),
            called: self.run.clock.now(),
        }
    }

    /// What came of it, if it was waited for, and on what terms a hold of it is.
    async fn attempt(&mut self, wish: &Wish) -> (Option<Result<Guard>>, Terms) {
        let lock = self.run.locker.lock(&wish.name).unwrap();
        let Wish { options, patience, .. } = *wish;
        let how = self.rng.u32(..4);
        if how == 1 && !wish.is_reentry {
            let (lease, terms) = self.lease();
            let lock = lock.leased(lease).unwrap();
            let acquired = self.driven(patience, lock.acquire_leased(options)).await;
            return (acquired.map(|outcome| outcome.map(Guard::Leased)), terms);
        }
        let acquired = if wish.is_reentry {
            self.driven(patience, lock.acquire_as(&self.run.owner, options)).await
        } else if how == 0 && lock.capabilities().fairness != Fairness::Unordered {
            self.driven(patience, lock.fair().unwrap().acquire_with(options)).await
        } else {
            self.driven(patience, lock.acquire_with(options)).await
        };
        (acquired.map(|outcome| outcome.map(Guard::Plain)), Terms::default())
    }

    fn lease(&mut self) -> (Lease, Terms) {
        let (mut lease, mut terms) = (Lease::new(self.society.ttl), Terms::default());
        if self.one_in(2) {
            lease = lease.renew(Renew::Never);
            terms.is_not_renewed = true;
        }
        if self.one_in(3) {
            let longest = self.society.ttl + self.up_to(self.society.ttl * 2);
            lease = lease.max_hold(longest);
            terms.longest = Some(longest);
        }
        (lease, terms)
    }

    fn hold(&self, wish: &Wish, guard: Guard, terms: Terms) -> Held {
        let (society, hold) = (&self.society, guard.plain().hold());
        society.count("grants");
        if wish.began.elapsed() > ROUND_TRIP * 5 {
            society.count("grants after a wait");
        }
        let in_doubt = society.network.is_under_way(hold.owner());
        let belief = society.believe(&wish.name, hold, wish.highest, wish.is_reentry);
        let (since, is_shared) = (Instant::now(), wish.is_reentry);
        Held { guard, belief, terms, since, is_shared, in_doubt }
    }

    fn patience(&mut self) -> Patience {
        let ttl = self.society.ttl;
        match self.rng.u32(..10) {
            0 => Patience::Polls(self.rng.usize(..6)),
            1 => Patience::Pauses(self.up_to(ttl / 2)),
            2 => Patience::Ends(self.up_to(ttl)),
            _ => Patience::Awaits,
        }
    }

    /// Whether a wait was over in time, by timers and by the clock of the process, of whose jumps
    /// timers know nothing.
    fn judge_time(&self, wish: &Wish) {
        let limit = match wish.wait {
            Wait::No => LONGEST_CALL,
            Wait::AtMost(limit) => limit,
            _ => return,
        };
        if wish.patience != Patience::Awaits {
            return;
        }
        let took = wish.began.elapsed();
        if took > limit + SLACK {
            self.society.violation(format!("{}: {:?} took {took:?}", wish.name, wish.wait));
        }
        let took = self.run.clock.now().saturating_duration_since(wish.called);
        let has_jumped = self.society.network.has_just_jumped(SLACK);
        if took > limit + SLACK && wish.wait != Wait::No && !has_jumped {
            let Wish { name, wait, .. } = wish;
            self.society.violation(format!("{name}: {wait:?} was not over when it was"));
        }
    }

    fn judge_failure(&self, wish: &Wish, error: &Error) {
        let (society, name) = (&self.society, &wish.name);
        society.network.history.note(|| format!("{name}: {error}"));
        match error {
            Error::Taken { .. } => {
                society.count("refusals");
                if wish.wait != Wait::No {
                    society.violation(format!("{name} was waited for: {error}"));
                }
            }
            Error::TimedOut { source, .. } => {
                society.count("waits in vain");
                // Some are not even willing to wait for an answer.
                let is_patient = wish.began.elapsed() > ROUND_TRIP;
                if society.is_calm && source.is_some() && !wish.is_reentry && is_patient {
                    society.violation(format!("{name}: {error}, {source:?}"));
                }
            }
            // Who enters again what was lost learns that.
            Error::Lost { .. } if wish.is_reentry && self.may_lose() => (),
            Error::Unreachable { .. } if !society.is_calm => {
                society.count("unreachable");
            }
            Error::ShutDown { .. } if self.is_leaving() => (),
            error => society.violation(format!("{name}: {error}")),
        }
    }

    async fn work(&mut self, held: &Held) {
        let ttl = self.society.ttl;
        let guard = held.guard.plain();
        // Of a hold that is renewed, or extended by a request whose answer nobody waits for, nobody
        // knows the end.
        let mut has_known_end = held.terms.is_not_renewed;
        // Most are short, and some last over several things that go wrong.
        let longest = if self.one_in(3) { 10 } else { 4 };
        for _ in 0..self.rng.u32(0..longest) {
            if let Guard::Leased(guard) = &held.guard
                && self.one_in(2)
            {
                if held.terms.is_not_renewed && self.one_in(3) {
                    // At the last moment, or a little late.
                    let rest = guard.valid_for().unwrap_or_default();
                    sleep(rest.saturating_sub(self.up_to(ROUND_TRIP))).await;
                }
                let patience = self.patience();
                let extended = self.driven(patience, guard.extend(ttl)).await;
                self.society.network.history.note(|| format!("extended: {extended:?}"));
                if extended.is_none() {
                    self.judge_drop(patience, || format!("the extension of {}", guard.owner()));
                }
                has_known_end &= extended.is_some();
            }
            self.write_later(guard);
            let pause = self.up_to(ttl);
            // A hold that is not taken away lasts that long at least.
            let until = self.run.clock.now() + guard.valid_for().unwrap_or_default();
            select! {
                biased;
                () = guard.lost() => {
                    self.judge_loss(held, until, has_known_end);
                    return;
                }
                () = sleep(pause) => (),
            }
            if let Some(longest) = held.terms.longest
                && guard.is_held()
                && held.since.elapsed() > longest + SLACK
            {
                let owner = guard.owner();
                self.society.violation(format!("{owner} holds for longer than {longest:?}"));
            }
        }
    }

    fn judge_loss(&self, held: &Held, until: driver::Instant, is_known_end: bool) {
        let (society, guard) = (&self.society, held.guard.plain());
        society.count("losses");
        society.network.history.note(|| format!("{} is lost", guard.owner()));
        if guard.is_held() {
            society.violation(format!("{} is said to be lost, and held", guard.owner()));
        }
        if !self.may_lose() && !held.terms.has_an_end() {
            society.violation(format!("{} was lost for no reason", guard.owner()));
        }
        // A renewal that failed before is tried again within less than that.
        let could_renew = society.network.is_clear_since(society.ttl * 3 / 5);
        let is_wronged =
            society.network.at_server(|server, _| server.ledger.wronged.contains(&guard.owner()));
        let is_kept = !held.terms.has_an_end() && !self.is_leaving();
        if could_renew && is_kept && !is_wronged {
            society.violation(format!("{} was lost in clear weather", guard.owner()));
        }
        let is_late = is_known_end && self.run.clock.now() > until + SLACK;
        if is_late && !society.network.has_just_jumped(SLACK) {
            society.violation(format!("{} was lost before, and nobody was told", guard.owner()));
        }
        let is_early = self.run.clock.now() + SLACK < until;
        let has_it = society.network.at_server(|server, now| {
            server.holders(now).iter().any(|(_, owner)| *owner == guard.owner())
        });
        if is_early && has_it && !self.is_leaving() {
            society.violation(format!("{} was lost before its time", guard.owner()));
        }
    }

    /// Writes what the lock is for, a little or a long time after a look at the guard.
    fn write_later(&mut self, guard: &LockGuard) {
        if !guard.is_held() {
            return;
        }
        let Some(token) = guard.fencing_token() else { return };
        let (society, owner, name) =
            (Arc::clone(&self.society), guard.owner(), guard.name().as_str().to_owned());
        let longest = if self.one_in(8) { society.ttl * 2 } else { Duration::from_millis(5) };
        let delay = self.up_to(longest);
        tokio::spawn(async move {
            sleep(delay).await;
            let written = society.effects[&name].write(token, |all| all.push((token, owner)));
            society.count(if written.is_ok() { "writes" } else { "stale writes" });
        });
    }

    async fn let_go(&mut self, held: Held) {
        let Held { guard, belief, is_shared, in_doubt, .. } = held;
        let owner = guard.plain().owner();
        let was_held = guard.plain().is_held();
        // From the call on, whoever let go does not believe any more.
        drop(belief);
        if self.one_in(4) {
            self.society.network.history.note(|| format!("{owner} drops it"));
            return drop(guard);
        }
        self.society.network.history.note(|| format!("{owner} releases it"));
        let (name, patience) = (guard.plain().name().clone(), self.patience());
        let began = Instant::now();
        let released = match guard {
            Guard::Plain(guard) => self.driven(patience, guard.release()).await,
            Guard::Leased(guard) => self.driven(patience, guard.release()).await,
        };
        let society = &self.society;
        let Some(released) = released else {
            return self.judge_drop(patience, || format!("the release of {owner}"));
        };
        society.network.history.note(|| format!("{owner} released: {released:?}"));
        if patience == Patience::Awaits && began.elapsed() > LONGEST_CALL + SLACK {
            society.violation(format!("{owner} was released after {:?}", began.elapsed()));
        }
        match released {
            Ok(()) => {
                society.count("releases");
                let is_free = self.owner_has_let_go(&name, owner);
                if !is_free && !is_shared && !in_doubt {
                    society.violation(format!("{owner} released {name}, and has it"));
                }
            }
            Err(Error::Lost { .. }) if self.may_lose() || !was_held => (),
            Err(Error::Unreachable { .. }) if !society.is_calm => {
                society.count("releases in doubt");
            }
            Err(error) => society.violation(format!("{owner} was not released: {error}")),
        }
    }

    fn owner_has_let_go(&self, name: &LockName, owner: OwnerId) -> bool {
        let network = &self.society.network;
        network.is_under_way(owner)
            || network.at_server(|server, _| server.holder(name)) != Some(owner)
    }

    /// Who awaited something dropped it only because it hangs.
    fn judge_drop(&self, patience: Patience, what: impl FnOnce() -> String) {
        if patience == Patience::Awaits {
            self.society.violation(format!("{} hangs", what()));
        }
    }

    /// What comes of a future; nothing if it was dropped before.
    async fn driven<F: Future>(&self, patience: Patience, future: F) -> Option<F::Output> {
        let ttl = self.society.ttl;
        match patience {
            Patience::Polls(times) => polled(future, times).await,
            Patience::Pauses(pause) => {
                let mut future = pin!(future);
                let begun = polled(future.as_mut(), 1).await;
                if begun.is_some() {
                    return begun;
                }
                sleep(pause).await;
                timeout(ttl * 4, future).await.ok()
            }
            Patience::Ends(limit) => timeout(limit, future).await.ok(),
            // Not even whoever may wait for ever does.
            Patience::Awaits => timeout(ttl * HANGS, future).await.ok(),
        }
    }
}

/// Polls a future so many times, and drops it then.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
