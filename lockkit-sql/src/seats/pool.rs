//! The connections of one driver that nobody uses, and how new ones are made.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Backoff, Limit};
use tokio::sync::oneshot;
use tokio::time::{Duration, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{NoSeat, Source};

/// However much of a hurry a request is in, no pause is cut shorter than this.
const LEAST_PAUSE: Duration = Duration::from_millis(250);

/// The connections that nobody uses.
///
/// Connections are made when requests need them, by tasks of their own: a request that gives up
/// waiting does not undo what the next one waits for. A request takes what comes first, a
/// connection that was made or one that was given back: the server may give no other.
#[derive(Debug)]
pub(super) struct Pool<S: Source> {
    source: S,
    state: Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S: Source> {
    /// The one used last is last, and used first. While requests wait, there is none.
    idle: Vec<S::Connection>,
    /// Who has waited longest is first.
    waiting: VecDeque<Waiting<S>>,
    /// How many requests have waited.
    waits: u64,
    /// How many attempts are under way: at least as many as there are requests that wait. One is
    /// begun only if it has fewer, so that there are no more connections than requests have seats.
    attempts: usize,
    tasks: Vec<AbortOnDropHandle<()>>,
    backoff: Backoff,
    /// How the last attempt failed, if it did.
    last: Option<S::Failure>,
    is_closed: bool,
}

/// A connection, and whether an earlier request has used it.
type Outcome<S> = Result<(<S as Source>::Connection, bool), <S as Source>::Failure>;

#[derive(Debug)]
struct Waiting<S: Source> {
    id: u64,
    limit: Duration,
    tell: oneshot::Sender<Outcome<S>>,
}

impl<S: Source> Pool<S> {
    pub(super) fn new(source: S, first: Option<S::Connection>) -> Self {
        let state = State {
            idle: first.into_iter().collect(),
            waiting: VecDeque::new(),
            waits: 0,
            attempts: 0,
            tasks: Vec::new(),
            backoff: Backoff::default(),
            last: None,
            is_closed: false,
        };
        Self { source, state: Mutex::new(state) }
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// A connection, as soon as there is one, and whether it was made for an earlier request; fails
    /// after `limit`.
    pub(super) async fn connection(self: &Arc<Self>, limit: Limit) -> Outcome<S> {
        let (mut turn, attempt) = {
            let mut state = self.state();
            if let Some(connection) = state.idle.pop() {
                return Ok((connection, true));
            }
            if state.is_closed {
                return Err(NoSeat::Closed.into());
            }
            let (id, told) = state.wait(limit.length());
            let attempt = state.begin().then(|| Attempt { pool: Arc::clone(self), is_over: false });
            (Turn { pool: self, id, told }, attempt)
        };
        if let Some(attempt) = attempt {
            let task = AbortOnDropHandle::new(tokio::spawn(attempt.make(limit.length())));
            let mut state = self.state();
            state.tasks.retain(|task| !task.is_finished());
            if !state.is_closed {
                state.tasks.push(task);
            }
        }
        match limit.bound(&mut turn.told).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(NoSeat::Closed.into())),
            Err(_) => {
                let last = self.state().last.clone();
                Err(S::late(limit.length(), last))
            }
        }
    }

    /// Leaves a connection for the next request.
    pub(super) fn take_back(&self, connection: S::Connection) {
        self.state().leave(connection, true);
    }

    pub(super) fn leave_idle_ones(&self) {
        self.state().idle.clear();
    }

    /// Makes no more connections; returns the idle ones.
    pub(super) fn close(&self) -> Vec<S::Connection> {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.clear();
        let tasks = std::mem::take(&mut state.tasks);
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        // Not before: the end of an attempt is noted there.
        drop(tasks);
        idle
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Source> State<S> {
    /// Leaves a connection to whoever has waited longest, or for the next request.
    fn leave(&mut self, connection: S::Connection, was_used: bool) {
        match self.waiting.pop_front() {
            _ if self.is_closed => (),
            None => self.idle.push(connection),
            // It is there: it would have left the line.
            Some(first) => _ = first.tell.send(Ok((connection, was_used))),
        }
    }

    fn wait(&mut self, limit: Duration) -> (u64, oneshot::Receiver<Outcome<S>>) {
        let (id, (tell, told)) = (self.waits, oneshot::channel());
        self.waits += 1;
        self.waiting.push_back(Waiting { id, limit, tell });
        (id, told)
    }

    /// Whether there is to be another attempt, which counts from then on.
    fn begin(&mut self) -> bool {
        let begins = self.attempts < self.waiting.len();
        self.attempts += usize::from(begins);
        begins
    }

    /// Notes how an attempt ended. Returns the limit of the request that needs another one, if any
    /// does.
    fn end(&mut self, opened: Result<S::Connection, S::Failure>) -> Option<Duration> {
        match opened {
            Ok(connection) => {
                self.backoff.succeeded();
                self.last = None;
                self.leave(connection, false);
            }
            Err(failure) => {
                self.backoff.failed();
                self.last = Some(failure.clone());
                match S::is_lasting(&failure) {
                    true => self.fail(failure),
                    false if self.attempts > self.waiting.len() => (),
                    false => return self.waiting.front().map(|first| first.limit),
                }
            }
        }
        self.attempts -= 1;
        None
    }

    /// Tells whoever has waited longest.
    fn fail(&mut self, failure: S::Failure) {
        if let Some(first) = self.waiting.pop_front() {
            // It is there: it would have left the line.
            _ = first.tell.send(Err(failure));
        }
    }
}

/// A request that waits for a connection. It leaves the line when it is dropped.
struct Turn<'a, S: Source> {
    pool: &'a Pool<S>,
    id: u64,
    told: oneshot::Receiver<Outcome<S>>,
}

impl<S: Source> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.waiting.retain(|waiting| waiting.id != self.id);
        // It came too late for this request.
        if let Ok(Ok((connection, was_used))) = self.told.try_recv() {
            state.leave(connection, was_used);
        }
    }
}

/// An attempt to connect.
struct Attempt<S: Source> {
    pool: Arc<Pool<S>>,
    is_over: bool,
}

impl<S: Source> Attempt<S> {
    /// Makes a connection, and tries again for as long as a request waits for it. There is a pause
    /// after a failure, which leaves time to connect within `limit`, since an outage that made
    /// pauses long may be over by now.
    async fn make(mut self, mut limit: Duration) {
        loop {
            let pause = self.pool.state().backoff.pause();
            sleep(pause.min(LEAST_PAUSE.max(limit / 2))).await;
            let opened = self.pool.source.connect().await;
            if let Err(failure) = &opened {
                tracing::debug!(endpoint = %self.pool.source, %failure, "could not connect");
            }
            let again = self.pool.state().end(opened);
            match again {
                Some(of_first) => limit = of_first,
                None => break,
            }
        }
        self.is_over = true;
    }
}

impl<S: Source> Drop for Attempt<S> {
    /// The runtime may end before the attempt does.
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.pool.state();
            state.attempts -= 1;
            state.fail(NoSeat::Closed.into());
        }
    }
}
