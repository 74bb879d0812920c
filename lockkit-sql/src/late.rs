//! Requests that were not answered in time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::Connection;
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::seats::say_goodbye;

/// How long to wait, at least, until one more request is tried.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The requests that were not answered in time, each with its connection.
///
/// The server may be at such a request for long. While a commit waits for a replica, no time-out ends
/// that, and the server does not look whether its client is still there: whoever closes the connection
/// and opens another leaves a session behind, and the next request another one. So each is kept until it
/// is answered, and while there are many, no more are sent.
///
/// It may as well be the way to the server that has gone silent, for these connections or for all. An
/// answer which says that something was written shows that commits pass: what has none by then was lost
/// on its way, and is given up.
#[derive(Debug)]
pub(crate) struct Late {
    most: usize,
    grace: Duration,
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
    /// For requests on so many connections. Those count that are not answered within `grace` after
    /// they were given up: for so long the server may wait for what others keep locked.
    pub(crate) fn new(connections: usize, grace: Duration) -> Self {
        // A network that has forgotten all connections has requests go on over others.
        Self { most: 2 * connections, grace, state: Mutex::default() }
    }

    /// Has a request seen through, which ends when it is answered.
    pub(crate) fn keep(&self, request: impl Future<Output = ()> + Send + 'static) {
        let (since, task) = (Instant::now(), AbortOnDropHandle::new(tokio::spawn(request)));
        let mut state = self.state();
        state.kept.push(Kept { since, task });
        state.last = Some(since);
    }

    /// Whether another request may be sent. While there are many, one is let in now and then to find
    /// out: the longer this lasts, the more rarely.
    pub(crate) fn lets_in(&self) -> bool {
        let State { kept, last } = &mut *self.state();
        kept.retain(|kept| !kept.task.is_finished());
        let overdue = kept.iter().filter(|kept| kept.since.elapsed() >= self.grace).count();
        let (false, Some(oldest), Some(last)) = (overdue < self.most, kept.first(), last) else {
            return true;
        };
        let is_due = last.elapsed() >= last.duration_since(oldest.since).max(LEAST_PAUSE);
        if is_due {
            *last = Instant::now();
        }
        is_due
    }

    /// Gives them all up.
    pub(crate) fn give_up(&self) {
        let kept = std::mem::take(&mut self.state().kept);
        drop(kept);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a connection once what was sent is answered.
pub(crate) async fn see_through(mut connection: impl Connection) {
    // This also sends something, so that the system notices if nobody is there any more.
    match connection.ping().await {
        Ok(()) => tracing::debug!("a request was answered late"),
        Err(error) => tracing::debug!(%error, "a request that was late has failed"),
    }
    say_goodbye(connection).await;
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
        let late = Late::new(2, Duration::ZERO);
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
    async fn what_others_may_keep_locked_does_not_count() {
        let grace = Duration::from_secs(2);
        let late = Late::new(1, grace);
        (0..10).for_each(|_| late.keep(pending()));
        assert!(late.lets_in() && late.lets_in());
        sleep(grace).await;
        // One is let in to find out.
        assert!(late.lets_in() && !late.lets_in());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_answered_makes_room() {
        let late = Late::new(1, Duration::ZERO);
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
