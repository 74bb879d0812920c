//! A claim on its way to a grant: asking and waiting.

mod stop;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::select;

use self::stop::Stop;
use crate::clock::{Instant, earlier};
use crate::driven::Caller;
use crate::driver::{Attempt, Change, Claim, DriverError, ErrorKind, Grant, Taken};
use crate::engine::Engine;
use crate::keeper::{Acquired, Remains, clear_up};
use crate::options::{Renew, Wait};
use crate::pace::{courtesy, jitter, spread};
use crate::progress::Progress;
use crate::tenure::Vouched;
use crate::turns::Ticket;
use crate::{Error, Fairness, Operation, meter};

/// How many waiters of one locker have a place for one lock at the same time, unless they ask to be
/// served in order. With a few, the next one is there when the lock is free. A place that is given up
/// and taken by another costs the backend requests: if every waiter had one, those who wait for a
/// moment only would keep it busy with places alone.
const PLACES: usize = 16;

/// One claim on its way to a grant.
pub(crate) struct Pursuit<'a> {
    engine: &'a Arc<Engine>,
    claim: &'a Claim,
    progress: &'a mut Progress,
}

impl<'a> Pursuit<'a> {
    pub(crate) fn of(
        engine: &'a Arc<Engine>,
        claim: &'a Claim,
        progress: &'a mut Progress,
    ) -> Self {
        Self { engine, claim, progress }
    }

    /// Nothing that it asked of the driver is under way: whoever has the claim sees to what is left,
    /// even if this thread is panicking for a reason of its own.
    pub(crate) fn rest(self) {
        std::mem::forget(self);
    }

    /// Asks for the first time, or says at once that the claim is to [wait](Self::wait). Reports
    /// why, if there will be no grant.
    pub(crate) async fn begin(&mut self, caller: &mut Caller<Acquired>) -> Option<Asked> {
        // A shutdown that has begun does not count a claim that is made after this look.
        if self.engine.stopping.is_cancelled() {
            return self.give_up(Stop::ShutDown, caller);
        }
        if let Some(abreast) = self.takes_turns() {
            let ticket = self.engine.turns.join(self.claim.name(), abreast);
            if !self.progress.ticket.insert(ticket).has_turn() {
                self.contend();
                return Some(Asked::Again(None));
            }
        }
        let Some(_one_of_few) = self.engine.crowd.join() else { return Some(Asked::Again(None)) };
        self.ask(self.progress.started, caller).await
    }

    /// Asks again when there is news and at intervals; the next time is at `next`, or at once if
    /// that is `None`. Returns a grant that is still good, or reports why there is none.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, as captured and as moved"
    )]
    pub(crate) fn wait(
        &mut self,
        mut next: Option<Instant>,
        caller: &mut Caller<Acquired>,
    ) -> impl Future<Output = Option<Won>> + Send {
        async move {
            let mut ask_at_once = next.is_none();
            // Until it is this claim's turn, those in front ask for it, too.
            if let Some(ticket) = self.progress.behind() {
                let stop = {
                    let mut has_stepped_aside = false;
                    // One for the whole wait: another would be the last in the line.
                    let mut turn = pin!(ticket.turn());
                    loop {
                        select! {
                            biased;
                            Some(stop) = self.stop(None, caller) => {
                                if self.deaf_until(&stop).is_none() {
                                    break Some(stop);
                                }
                            }
                            its = &mut turn => {
                                if has_stepped_aside || self.is_in_time(ticket) {
                                    ticket.take(its);
                                    break None;
                                }
                                // Others may have more time left.
                                drop(its);
                                turn.set(ticket.turn());
                                has_stepped_aside = true;
                            }
                        }
                    }
                };
                match stop {
                    Some(stop) => return self.give_up(stop, caller),
                    // A backend that was silent until now may still be.
                    None => self.progress.unanswered = self.progress.silent_before(ticket),
                }
            }
            // When to ask because of news that everybody got: not before the courtesy is over.
            let mut freed = None;
            loop {
                let change = if std::mem::take(&mut ask_at_once) {
                    Change::AskAgain
                } else {
                    select! {
                        biased;
                        stop = self.stop(earlier(freed, next), caller) => match stop {
                            Some(stop) if self.stood_still(&stop) => continue,
                            Some(stop) => return self.give_up(stop, caller),
                            None => Change::AskAgain,
                        },
                        // Of what failed last, news could only cut the back-off short.
                        change = self.engine.driver.changed(self.claim),
                            if self.progress.failure.is_none() => change,
                    }
                };
                // Another thread may have begun a shutdown, and not roused this wait yet.
                if self.engine.stopping.is_cancelled() {
                    return self.give_up(Stop::ShutDown, caller);
                }
                match change {
                    Change::Freed => {
                        let courtesy = courtesy(self.progress.in_vain);
                        let now = self.engine.clock.stamp();
                        let due = *freed.get_or_insert(now + courtesy);
                        if due > now {
                            continue;
                        }
                    }
                    Change::Granted(grant) => {
                        // A lease that nobody renews should be a whole one: asking makes it so.
                        if self.progress.renew == Renew::Auto
                            && let Some(won) = self.won_by_news(grant)
                        {
                            return Some(won);
                        }
                    }
                    Change::AskAgain | Change::Lost => (),
                }
                // A poll that was due anyway says nothing about how many waiters there are.
                let is_courteous = freed.take().is_some();
                // A suspension that is noticed only after the grant would end the hold.
                match self.ask(self.engine.clock.now(), caller).await? {
                    Asked::Won(won) => return Some(won),
                    Asked::Again(at) => next = at,
                }
                let progress = &mut *self.progress;
                let was_in_vain = is_courteous && progress.failure.is_none();
                progress.in_vain = progress.in_vain.saturating_add(was_in_vain.into());
            }
        }
    }

    /// One request for the lock, sent at `asked`.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, as captured and as moved"
    )]
    fn ask(
        &mut self,
        asked: Instant,
        caller: &mut Caller<Acquired>,
    ) -> impl Future<Output = Option<Asked>> + Send {
        async move {
            let mut request = pin!(self.engine.driver.try_acquire(self.claim));
            _ = self.progress.unanswered.get_or_insert(asked);
            if let Some(ticket) = &self.progress.ticket {
                ticket.asks(asked);
            }
            let stop = loop {
                select! {
                    biased;
                    answer = &mut request => return self.answered(asked, answer, caller),
                    // Otherwise it is in nobody's way.
                    () = caller.gone(), if self.passes_turn_at_once() => {
                        break Stop::CallerGone;
                    }
                    () = self.engine.clock.sleep_until_some(self.limit()) => (),
                }
                // Reckoned again, since a waiter has no room to keep it.
                let stop = self.stop_at_limit();
                if !self.stood_still(&stop) {
                    break stop;
                }
            };
            let given_up = self.give_up(stop, caller);
            // The caller does not wait for the answer, but the clean-up must.
            if self.passes_turn_at_once() {
                self.progress.pass_turn();
            }
            self.note(asked, &request.await);
            given_up
        }
    }

    fn answered(
        &mut self,
        asked: Instant,
        answer: Result<Attempt, DriverError>,
        caller: &mut Caller<Acquired>,
    ) -> Option<Asked> {
        self.note(asked, &answer);
        match answer {
            // What was granted meanwhile is released again.
            _ if self.engine.stopping.is_cancelled() => self.give_up(Stop::ShutDown, caller),
            Ok(Attempt::Granted(grant)) => {
                // Not a stamp: a suspension since then has to be noticed, however short ago.
                let now = self.engine.clock.now();
                let vouched = Vouched::new(grant.vouched(), asked, self.claim.ttl());
                if vouched.is_good_at(now) {
                    return Some(Asked::Won(Won { grant, vouched }));
                }
                let late = "granted, but answered after the lease was over";
                self.after_failure(now, DriverError::new(ErrorKind::Unknown, late), caller)
            }
            Ok(Attempt::Taken(taken)) => {
                self.after_refusal(self.engine.clock.stamp(), &taken, caller)
            }
            Err(error) => self.after_failure(self.engine.clock.stamp(), error, caller),
        }
    }

    /// Takes what was pushed to a claim that waits, if that is still good.
    fn won_by_news(&self, grant: Grant) -> Option<Won> {
        let refused = self.progress.refused?;
        let vouched = Vouched::new(grant.vouched(), refused, self.claim.ttl());
        vouched.is_good_at(self.engine.clock.now()).then_some(Won { grant, vouched })
    }

    /// Whether there is twice as much time left as the last answer took. What is answered too late is of
    /// no use, and keeps the backend from answering others: in a line that is too long nobody would be
    /// served, since whoever is next has waited for almost as long as it may. A caller without a limit
    /// may go away as others have. But the last answer may have been a slow one, and nobody else there.
    fn is_in_time(&self, ticket: &Ticket) -> bool {
        let word = ticket.word();
        let likely_end = || word.left_after.map(|time| self.progress.started + time);
        let Some(end) = self.progress.deadline().or_else(likely_end) else { return true };
        end.saturating_duration_since(self.engine.clock.stamp()) >= 2 * word.took
    }

    fn contend(&mut self) {
        if !std::mem::replace(&mut self.progress.contended, true) {
            tracing::debug!(lock = %self.claim.name(), owner = %self.claim.owner(), "waiting");
            meter::contended(self.engine, self.claim.name());
        }
    }

    /// How many waiters of this locker ask at a time, if they take turns.
    fn takes_turns(&self) -> Option<usize> {
        let takes_turns = self.claim.waits() && !self.claim.is_fair();
        takes_turns.then(|| if self.has_place() { PLACES } else { 1 })
    }

    /// Whether those behind need not wait until what was asked last is answered and cleared up. If
    /// it has left a place they wait, so that there are never more than [`PLACES`].
    fn passes_turn_at_once(&self) -> bool {
        self.progress.ticket.as_ref().is_some_and(|ticket| !ticket.is_one_of_several())
    }

    /// Whether a refused ask leaves a place in a queue of the backend.
    fn has_place(&self) -> bool {
        let ordered = self.engine.driver.capabilities().fairness == Fairness::Fifo;
        self.claim.waits() && (ordered || self.claim.is_fair())
    }

    /// Remembers what an ask may have left behind, and tells those behind whether it was answered.
    fn note(&mut self, asked: Instant, answer: &Result<Attempt, DriverError>) {
        match answer {
            Ok(Attempt::Granted(_)) => self.progress.traces = true,
            Ok(Attempt::Taken(_)) => {
                self.progress.traces |= self.claim.waits();
                self.progress.refused = Some(asked);
            }
            Err(error) if error.kind() == ErrorKind::Unknown => {
                self.progress.traces = true;
                // A driver may have sent it only now: it had to connect, or to wait for its turn.
                self.progress.in_doubt = Some(self.engine.clock.now());
            }
            Err(_) => (),
        }
        let silent = answer.as_ref().is_err_and(|error| error.kind().is_transient());
        if !silent {
            self.progress.unanswered = None;
            self.progress.answered = true;
            self.progress.failure = None;
        }
        match &self.progress.ticket {
            Some(ticket) if silent => ticket.fails(asked),
            Some(ticket) => ticket.is_answered(asked, self.engine.clock.stamp()),
            None => (),
        }
    }

    fn after_refusal(
        &mut self,
        now: Instant,
        taken: &Taken,
        caller: &mut Caller<Acquired>,
    ) -> Option<Asked> {
        let (name, driver) = (self.claim.name(), self.engine.driver.id());
        match self.progress.wait {
            Wait::No => {
                _ = caller.report(Err(Error::Taken { name: name.clone(), driver }));
                None
            }
            Wait::AtMost(patience) if patience.is_zero() => self.give_up(Stop::TimeIsUp, caller),
            _ => {
                self.contend();
                let tells = || self.engine.driver.capabilities().notification;
                let is_told = taken.is_told.unwrap_or_else(tells);
                let poll = match (self.has_place(), is_told) {
                    // A place has to be refreshed, once in a third of the lease or a little more,
                    // and is served by a push.
                    (true, true) => jitter(self.claim.ttl() * 2 / 5),
                    (false, true) => {
                        let pause = taken.ask_within.unwrap_or(Duration::from_secs(1));
                        jitter(pause.min(self.claim.ttl() / 3))
                    }
                    (_, false) => spread(self.pause()),
                };
                // Few backends tell of an expiry; asking a moment after it is as good. A lease
                // that is said to be over, again and again, is worth no hurry.
                let expiry = match taken.remaining() {
                    Some(Duration::ZERO) => self.progress.pause(),
                    Some(remaining) => remaining.saturating_add(Duration::from_millis(2)),
                    None => poll,
                };
                Some(Asked::Again(Some(now + poll.min(expiry))))
            }
        }
    }

    fn after_failure(
        &mut self,
        now: Instant,
        error: DriverError,
        caller: &mut Caller<Acquired>,
    ) -> Option<Asked> {
        if self.claim.waits() && error.kind().is_transient() {
            let (lock, owner, kind) = (self.claim.name(), self.claim.owner(), error.kind());
            tracing::debug!(%lock, %owner, %kind, "asking again");
            self.contend();
            self.progress.failure = Some(Box::new(error));
            return Some(Asked::Again(Some(now + jitter(self.pause()))));
        }
        let error = self.engine.failed_error(Operation::Acquire, Some(self.claim.name()), error);
        _ = caller.report(Err(error));
        None
    }

    /// How long to leave alone a backend that says nothing by itself.
    fn pause(&mut self) -> Duration {
        let pause = self.progress.pause();
        // A place has to be refreshed.
        if self.has_place() { pause.min(self.claim.ttl() / 3) } else { pause }
    }
}

impl Drop for Pursuit<'_> {
    /// Leaves nothing behind of a claim whose driver has panicked: what it was asked last may have
    /// been done, and may still be.
    fn drop(&mut self) {
        if thread::panicking() {
            let (engine, claim) = (Arc::clone(self.engine), self.claim.clone());
            self.engine.spawn(async move {
                let in_doubt = Some(engine.clock.now());
                clear_up(&engine, &claim, Remains::of_wait(&claim, in_doubt), |_| ()).await;
            });
        }
    }
}

/// A grant that is good.
pub(crate) struct Won {
    pub(crate) grant: Grant,
    pub(crate) vouched: Vouched,
}

/// What one request for the lock came to.
pub(crate) enum Asked {
    Won(Won),
    /// Not yet: ask again at this time, or earlier if there is news. Without a time, there was no
    /// ask yet.
    Again(Option<Instant>),
}
