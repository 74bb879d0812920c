//! Requests that were not answered in time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// How long to wait, at least, until one more request is tried.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The requests that were not answered in time, each with its connection.
///
/// The server may be at such a request for long. While a commit waits for a standby, no time-out ends
/// that, and the server does not look whether its client is still there: whoever closes the connection
/// and opens another leaves a session behind, and the next request another one. So each is kept until it
/// is answered, and while there are many, no more are sent.
///
/// It may as well be the way to the server that has gone silent, for these connections or for all. An
/// answer which says that something was written shows that commits pass: what has none by then was lost
/// on its way, and is given up.
#[derive(Debug)]
pub(super) struct Late {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest is first.
    kept: Vec<Kept>,
    /// When the last one was added, or let in to find out how things are.
    last: Option<Instant>,
}

#[derive(Debug)]
struct Kept {
    since: Instant,
    task: AbortOnDropHandle<()>,
}

impl Late {
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Has a request seen through, which ends when it is answered.
    pub(super) fn keep(&self, request: impl Future<Output = ()> + Send + 'static) {
        let (since, task) = (Instant::now(), AbortOnDropHandle::new(tokio::spawn(request)));
        let mut state = self.state();
        state.kept.push(Kept { since, task });
        state.last = Some(since);
    }

    /// Whether another request may be sent. While there are many, one is let in now and then to find
    /// out: the longer this lasts, the more rarely.
    pub(super) fn lets_in(&self) -> bool {
        let State { kept, last } = &mut *self.state();
        kept.retain(|kept| !kept.task.is_finished());
        let (false, Some(oldest), Some(last)) = (kept.len() < self.most, kept.first(), last) else {
            return true;
        };
        let is_due = last.elapsed() >= last.duration_since(oldest.since).max(LEAST_PAUSE);
        if is_due {
            *last = Instant::now();
        }
        is_due
    }

    /// Gives them all up.
    pub(super) fn give_up(&self) {
        let kept = std::mem::take(&mut self.state().kept);
        drop(kept);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::{Duration, sleep};

    use super::Late;

    #[tokio::test(start_paused = true)]
    async fn while_many_are_late_few_others_are_sent() {
        let late = Late::new(4);
        let mut sent = 0;
        // Each of which is not answered for a second.
        for _ in 0..3600 {
            while late.lets_in() {
                late.keep(pending());
                sent += 1;
            }
            sleep(Duration::from_secs(1)).await;
        }
        assert!((10..=20).contains(&sent), "{sent} in an hour");
        late.give_up();
        assert!(late.lets_in() && late.lets_in());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_answered_makes_room() {
        let late = Late::new(2);
        let (answer, answered) = oneshot::channel::<()>();
        late.keep(async { _ = answered.await });
        assert!(late.lets_in());
        late.keep(pending());
        assert!(!late.lets_in());
        answer.send(()).unwrap();
        yield_now().await;
        assert!(late.lets_in() && late.lets_in());
    }
}
