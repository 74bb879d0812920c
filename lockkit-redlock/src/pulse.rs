//! Whether a node answers: one that does not is left alone, except for one request at a time.

use std::error::Error as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Clock, DriverError, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::unreachable;
use crate::member::causes;

/// What is known of a node from the requests to it.
///
/// Without this, every claim would have its own requests at a node that is down, to be repeated for
/// as long as its lease lasts: the more locks are taken, the more they would slow one another down.
#[derive(Debug)]
pub(crate) struct Pulse {
    state: Mutex<State>,
    /// The right to be the one request at a silent node.
    probe: Arc<Semaphore>,
    /// Room for those who wait for that right.
    room: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    /// Since when none of the requests under way has been answered.
    unanswered_since: Option<Instant>,
    /// Whether the last request has failed.
    failing: Option<Failing>,
    /// How long the last answer took.
    pace: Duration,
}

#[derive(Debug)]
struct Failing {
    /// How many requests have failed in a row.
    failures: u32,
    /// What the last of these said.
    reason: String,
    /// Until when the node is left alone.
    rests_until: Instant,
}

impl State {
    fn rests_until(&self) -> Option<Instant> {
        self.failing.as_ref().map(|failing| failing.rests_until)
    }
}

/// How long a node is left alone after it has failed: the first time, and at most.
const RESTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));

/// How many wait at most for a silent node to answer: each takes 2 KiB.
const ROOM: usize = 4096;

impl Default for Pulse {
    fn default() -> Self {
        let (probe, room) = (Arc::new(Semaphore::new(1)), Semaphore::new(ROOM));
        Self { state: Mutex::default(), probe, room }
    }
}

impl Pulse {
    /// Whether the node fails, or has let requests wait for longer than `patience`.
    pub(crate) fn is_silent(&self, clock: &Clock, patience: Duration) -> bool {
        let state = self.state();
        // Mostly there is nothing to compare the time with.
        let unanswered = |since| clock.now().saturating_duration_since(since) > patience;
        state.failing.is_some() || state.unanswered_since.is_some_and(unanswered)
    }

    /// Whether its last answer was a failure. Otherwise, a silent node is only late.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().failing.is_some()
    }

    /// Why nothing is asked of it.
    pub(crate) fn why_silent(&self) -> DriverError {
        unreachable(match &self.state().failing {
            Some(failing) => format!("it answers nobody: {}", failing.reason),
            None => "it answers nobody, and is being asked".into(),
        })
    }

    /// Whether it can be expected to answer within `limit`, going by its last answer.
    pub(crate) fn is_prompt(&self, limit: Duration) -> bool {
        self.state().pace <= limit
    }

    /// Lets a request to the node begin, unless the node is silent and is being asked, or was asked
    /// a moment ago.
    pub(crate) fn pass(self: &Arc<Self>, clock: &Clock, patience: Duration) -> Option<Pass> {
        let mut probe = None;
        if self.is_silent(clock, patience) {
            probe = Some(Arc::clone(&self.probe).try_acquire_owned().ok()?);
            if self.state().rests_until().is_some_and(|end| end > clock.now()) {
                return None;
            }
        }
        Some(self.begin(clock, probe))
    }

    /// Waits until the node is not silent, or it is time to ask it again. `None` if too many wait
    /// already.
    ///
    /// Cancel-safe.
    pub(crate) async fn passed(
        self: &Arc<Self>,
        clock: &Clock,
        patience: Duration,
    ) -> Option<Pass> {
        let mut probe = None;
        if self.is_silent(clock, patience) {
            let _place = self.room.try_acquire().ok()?;
            // The semaphore is never closed.
            probe = Arc::clone(&self.probe).acquire_owned().await.ok();
            // Whoever had it before may have got an answer, which ends the rest.
            let rests_until = self.state().rests_until();
            if let Some(end) = rests_until {
                clock.sleep_until(end).await;
            }
        }
        Some(self.begin(clock, probe.filter(|_| self.is_silent(clock, patience))))
    }

    fn begin(self: &Arc<Self>, clock: &Clock, probe: Option<OwnedSemaphorePermit>) -> Pass {
        let mut state = self.state();
        state.under_way += 1;
        let begun = clock.now();
        state.unanswered_since.get_or_insert(begun);
        Pass { pulse: Arc::clone(self), begun, has_ended: false, _probe: probe }
    }

    fn end(&self, begun: Instant, now: Instant, failure: Option<&DriverError>) {
        let reason = failure.map(|failure| failure.source().map(causes).unwrap_or_default());
        let mut state = self.state();
        state.under_way -= 1;
        state.pace = now.saturating_duration_since(begun);
        let failures = state.failing.take().map_or(0, |failing| failing.failures);
        match reason {
            Some(reason) => {
                let rest = RESTS.0 * 2_u32.saturating_pow(failures.min(16));
                let (failures, rests_until) = (failures.saturating_add(1), now + rest.min(RESTS.1));
                state.failing = Some(Failing { failures, reason, rests_until });
            }
            None => state.unanswered_since = Some(now),
        }
        if state.under_way == 0 {
            state.unanswered_since = None;
        }
    }

    /// Takes note that a request has ended, without knowing how.
    fn forget(&self) {
        let mut state = self.state();
        state.under_way -= 1;
        if state.under_way == 0 {
            state.unanswered_since = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to send one request.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pass {
    pulse: Arc<Pulse>,
    pub(crate) begun: Instant,
    has_ended: bool,
    _probe: Option<OwnedSemaphorePermit>,
}

impl Pass {
    /// Notes how the request has ended.
    pub(crate) fn answered<T>(self, now: Instant, answer: &Result<T, DriverError>) {
        match answer {
            Ok(_) => self.ended(now, None),
            Err(error) => self.ended(now, Some(error)),
        }
    }

    /// As [`answered`](Self::answered), given only how the node has failed, if it has.
    pub(crate) fn ended(mut self, now: Instant, failure: Option<&DriverError>) {
        let is_dead = |error: &&DriverError| error.kind().is_transient();
        self.has_ended = true;
        self.pulse.end(self.begun, now, failure.filter(is_dead));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.has_ended {
            self.pulse.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(50);

    fn node() -> (Arc<Pulse>, Clock) {
        (Arc::default(), Clock::system())
    }

    fn down() -> Result<(), DriverError> {
        Err(unreachable("it is down"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_lets_one_request_wait_is_asked_by_one_more() {
        let (pulse, clock) = node();
        let first = pulse.pass(&clock, PATIENCE).unwrap();
        tokio::time::sleep(PATIENCE).await;
        let _second = pulse.pass(&clock, PATIENCE).unwrap();
        tokio::time::sleep(PATIENCE).await;
        let probe = pulse.pass(&clock, PATIENCE).unwrap();
        assert!(pulse.pass(&clock, PATIENCE).is_none());
        first.answered(clock.now(), &Ok(()));
        assert!(!pulse.is_silent(&clock, PATIENCE));
        // Whoever gives up says nothing about the node.
        drop(probe);
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(pulse.is_silent(&clock, PATIENCE), "the second still waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_fails_is_asked_by_one_at_a_time_until_it_answers() {
        let (pulse, clock) = node();
        pulse.pass(&clock, PATIENCE).unwrap().answered(clock.now(), &down());
        assert!(pulse.pass(&clock, PATIENCE).is_none(), "it rests");
        let probe = pulse.passed(&clock, PATIENCE).await.unwrap();
        assert!(pulse.pass(&clock, PATIENCE).is_none(), "it is being asked");
        let next = pulse.passed(&clock, PATIENCE);
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
        probe.answered(clock.now(), &down());
        next.await.unwrap().answered(clock.now(), &Ok(()));
        let _both = [0, 1].map(|_| pulse.pass(&clock, PATIENCE).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_wait_for_a_silent_node_and_no_more() {
        let (pulse, clock) = node();
        pulse.pass(&clock, PATIENCE).unwrap().answered(clock.now(), &down());
        let mut waiting: Vec<_> =
            (0..ROOM).map(|_| Box::pin(pulse.passed(&clock, PATIENCE))).collect();
        for one in &mut waiting {
            assert!(futures_util::poll!(one).is_pending());
        }
        assert!(pulse.passed(&clock, PATIENCE).await.is_none());
        drop(waiting);
        assert!(pulse.passed(&clock, PATIENCE).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_says_nothing_about_the_node() {
        let (pulse, clock) = node();
        drop(pulse.pass(&clock, PATIENCE).unwrap());
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!pulse.is_silent(&clock, PATIENCE));
    }
}
