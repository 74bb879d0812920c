//! When a claim is given up before it was granted, and what its caller is told.

use std::future::Future;
use std::time::Duration;

use tokio::select;
use tokio::time::sleep_until;

use super::Pursuit;
use crate::clock::{Instant, earlier};
use crate::driven::Caller;
use crate::driver::{DriverError, ErrorKind};
use crate::keeper::Acquired;
use crate::options::Wait;
use crate::{BoxError, Error, Operation};

/// Why a claim is given up before it was granted.
pub(super) enum Stop {
    CallerGone,
    TimeIsUp,
    /// No answer for the length of a lease, which was `over` then: an ask may have been carried out,
    /// or none was.
    Silence {
        kind: ErrorKind,
        over: Instant,
    },
    ShutDown,
}

impl Pursuit<'_> {
    /// When the backend counts as silent, if nothing it was asked is answered before.
    fn end_of_patience(&self) -> Option<Instant> {
        self.progress.unanswered.map(|since| since + self.claim.ttl())
    }

    /// How long to wait for an answer.
    pub(super) fn limit(&self) -> Option<Instant> {
        earlier(self.progress.deadline(), self.end_of_patience())
    }

    /// Why an answer is waited for no longer, once that is over.
    pub(super) fn stop_at_limit(&self) -> Stop {
        match self.end_of_patience().filter(|_| self.limit() != self.progress.deadline()) {
            Some(over) => Stop::Silence { kind: ErrorKind::Unknown, over },
            None => Stop::TimeIsUp,
        }
    }

    /// Returns why the claim is to be given up, once it is, or `None` at `next`. There is only one
    /// timer, since waiters are many.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, as captured and as moved"
    )]
    pub(super) fn stop(
        &self,
        next: Option<Instant>,
        caller: &mut Caller<Acquired>,
    ) -> impl Future<Output = Option<Stop>> + Send {
        async move {
            let mut has_slept = false;
            loop {
                // Made before the look, so that nothing after it is missed.
                let roused = self.engine.clock.roused();
                let timer = match self.look(next, has_slept) {
                    Look::Stop(stop) => return Some(stop),
                    Look::Next => return None,
                    Look::Wait(until) => self.engine.clock.timer(until),
                };
                select! {
                    biased;
                    () = caller.gone() => return Some(Stop::CallerGone),
                    () = roused => (),
                    () = sleep_until(timer) => has_slept = true,
                }
            }
        }
    }

    /// Whether to go on waiting. `Next` comes only after everything else was looked at once.
    fn look(&self, next: Option<Instant>, may_be_next: bool) -> Look {
        if self.engine.stopping.is_cancelled() {
            return Look::Stop(Stop::ShutDown);
        }
        let now = self.engine.clock.stamp();
        let deadline = self.progress.deadline();
        // The front waiter is answered for now: this is how soon to look again.
        let silent = self.progress.silent_since().or_else(|| self.progress.behind().map(|_| now));
        let silence = silent.map(|since| since + self.claim.ttl());
        let is_over = |limit: &Instant| *limit <= now;
        if deadline.as_ref().is_some_and(is_over) {
            return Look::Stop(Stop::TimeIsUp);
        }
        if let Some(over) = silence.filter(is_over) {
            let in_doubt = self.progress.in_doubt.zip(silent);
            let is_in_doubt = in_doubt.is_some_and(|(asked, since)| asked >= since);
            let kind = if is_in_doubt { ErrorKind::Unknown } else { ErrorKind::Unreachable };
            return Look::Stop(Stop::Silence { kind, over });
        }
        if may_be_next && next.as_ref().is_some_and(is_over) {
            return Look::Next;
        }
        let first = [deadline, silence, next].into_iter().flatten().min();
        Look::Wait(first.unwrap_or(now + Duration::MAX))
    }

    /// Whether a silence is none, since this process could not hear. It counts from now on then.
    pub(super) fn stood_still(&mut self, stop: &Stop) -> bool {
        let until = self.deaf_until(stop);
        if until.is_some() {
            self.progress.unanswered = until;
        }
        until.is_some()
    }

    /// Until when nothing could be heard, if this process, or the machine, stood still when a silence
    /// was over. Those behind are told.
    pub(super) fn deaf_until(&self, stop: &Stop) -> Option<Instant> {
        /// Less is a busy machine, or the time that it takes to notice a suspension.
        const LATE: Duration = Duration::from_secs(1);
        let Stop::Silence { over, .. } = *stop else { return None };
        let now = self.engine.clock.now();
        if now <= over + LATE {
            return None;
        }
        if let Some(ticket) = &self.progress.ticket {
            ticket.stood_still_until(now);
        }
        Some(now)
    }

    pub(super) fn give_up<T>(&mut self, stop: Stop, caller: &mut Caller<Acquired>) -> Option<T> {
        let (name, driver) = (self.claim.name(), self.engine.driver.id());
        let error = match stop {
            Stop::CallerGone => {
                if let Some(ticket) = &self.progress.ticket {
                    let now = self.engine.clock.stamp();
                    ticket.is_left_after(now.saturating_duration_since(self.progress.started));
                }
                return None;
            }
            Stop::ShutDown => self.engine.shut_down_error(),
            Stop::TimeIsUp => {
                self.progress.tell_owner();
                let is_unheard = self.progress.is_unheard();
                let failure = self.progress.failure.take().map(|failure| failure.into_source());
                let source = failure.or_else(|| is_unheard.then(|| BoxError::from("no answer")));
                let waited = match self.progress.wait {
                    Wait::AtMost(patience) => patience,
                    _ => self.engine.clock.now().saturating_duration_since(self.progress.started),
                };
                Error::TimedOut { name: name.clone(), driver, waited, source }
            }
            Stop::Silence { kind, .. } => {
                self.progress.tell_owner();
                let source = match self.progress.failure.take() {
                    None => BoxError::from("no answer for the length of a lease"),
                    Some(failure) if failure.kind() == kind => failure.into_source(),
                    Some(failure) => NoAnswer::beside(*failure).into(),
                };
                let error = DriverError::new(kind, source);
                self.engine.failed_error(Operation::Acquire, Some(name), error)
            }
        };
        // The caller may be gone by now.
        _ = caller.report(Err(error));
        None
    }
}

/// A silence, where the last ask that failed did so in another way.
#[derive(Debug, thiserror::Error)]
#[error("no answer for the length of a lease; another ask failed: {kind}")]
struct NoAnswer {
    kind: ErrorKind,
    source: BoxError,
}

impl NoAnswer {
    fn beside(failure: DriverError) -> Self {
        Self { kind: failure.kind(), source: failure.into_source() }
    }
}

/// What becomes of a claim that waits.
enum Look {
    Stop(Stop),
    Next,
    Wait(Instant),
}
