//! The connections of one driver that nobody uses, and how new ones are made.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Backoff, Limit};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Duration, Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{Failing as _, NoSeat, Source};

/// However much of a hurry a request is in, no pause is cut shorter than this.
const LEAST_PAUSE: Duration = Duration::from_millis(250);

/// A connection that takes longer than this may never come: a packet was lost, or its host has gone.
/// It may also be on its way, from a server that is slow or far.
const LONG: Duration = Duration::from_millis(500);

/// The connections that nobody uses.
///
/// Connections are made when requests need them, by tasks of their own: a request that gives up
/// waiting does not undo what the next one waits for. A request takes what comes first, a
/// connection that was made or one that was given back: the server may give no other.
#[derive(Debug)]
pub(super) struct Pool<S: Source> {
    source: S,
    /// One for each seat. Who asks for a connection has one.
    pub(super) permits: Semaphore,
    state: Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S: Source> {
    /// The one used last is last, and used first. While requests wait, there is none.
    idle: Vec<S::Connection>,
    /// Who has waited longest is first.
    waiting: VecDeque<Waiting<S>>,
    /// The attempts under way: at least as many as there are requests that wait.
    attempts: Vec<Underway>,
    /// How many requests have waited, and attempts were begun.
    ids: u64,
    backoff: Backoff,
    /// Whether the last connection that was made was of no use.
    was_in_vain: bool,
    /// How the last attempt failed, if it did.
    last: Option<S::Failure>,
    is_closed: bool,
}

#[derive(Debug)]
struct Underway {
    id: u64,
    /// Since when it has been connecting, unless it pauses.
    since: Option<Instant>,
    /// Kept to end it.
    task: Option<AbortOnDropHandle<()>>,
}

/// A connection, and whether it is older than the request that waits for it.
type Outcome<S> = Result<(<S as Source>::Connection, bool), <S as Source>::Failure>;

#[derive(Debug)]
struct Waiting<S: Source> {
    id: u64,
    limit: Duration,
    tell: oneshot::Sender<Outcome<S>>,
}

impl<S: Source> Pool<S> {
    pub(super) fn new(source: S, first: Option<S::Connection>, number: usize) -> Self {
        let state = State {
            idle: first.into_iter().collect(),
            waiting: VecDeque::new(),
            attempts: Vec::new(),
            ids: 0,
            backoff: Backoff::default(),
            was_in_vain: false,
            last: None,
            is_closed: false,
        };
        Self { source, permits: Semaphore::new(number), state: Mutex::new(state) }
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// A connection, as soon as there is one, and whether it is older than this request, and so may
    /// have ended before it; fails after `limit`.
    pub(super) async fn connection(self: &Arc<Self>, limit: Limit) -> Outcome<S> {
        let (mut turn, begun) = {
            let mut state = self.state();
            if let Some(connection) = state.idle.pop() {
                return Ok((connection, true));
            }
            if state.is_closed {
                return Err(NoSeat::Closed.into());
            }
            let (id, told) = state.wait(limit.length());
            let begun = state.begin(self.permits.available_permits());
            (Turn { pool: self, id, told }, begun)
        };
        if let Some((id, given_up)) = begun {
            // Not before: the end of an attempt is noted in the state.
            drop(given_up);
            let attempt = Attempt { pool: Arc::clone(self), id };
            let task = AbortOnDropHandle::new(tokio::spawn(attempt.make(limit.length())));
            // It may be over by now.
            if let Some(underway) = self.state().attempt(id) {
                underway.task = Some(task);
            }
        }
        match limit.bound(&mut turn.told).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(NoSeat::Closed.into())),
            Err(_) => {
                let last = self.state().last.clone();
                Err(S::Failure::no_connection(limit.length(), last))
            }
        }
    }

    /// Leaves a connection for the next request.
    pub(super) fn take_back(&self, connection: S::Connection) {
        let mut state = self.state();
        if std::mem::take(&mut state.was_in_vain) {
            state.succeed();
        }
        state.leave(connection, None);
    }

    /// A connection was made, and turned out to be of no use.
    pub(super) fn note_failure(&self, failure: S::Failure) {
        let mut state = self.state();
        state.was_in_vain = true;
        state.fail_to_connect(failure);
    }

    pub(super) fn leave_idle_ones(&self) {
        self.state().idle.clear();
    }

    /// Makes no more connections; returns the idle ones.
    pub(super) fn close(&self) -> Vec<S::Connection> {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.clear();
        let attempts = std::mem::take(&mut state.attempts);
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        // Not before: the end of an attempt is noted there.
        drop(attempts);
        idle
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Source> State<S> {
    /// Leaves a connection to whoever has waited longest, or for the next request; `made_by` is the
    /// attempt that has made it just now.
    fn leave(&mut self, connection: S::Connection, made_by: Option<u64>) {
        match self.waiting.pop_front() {
            _ if self.is_closed => (),
            None => self.idle.push(connection),
            Some(first) => {
                // Attempts that were begun before are under way for as long as it takes them.
                let is_older = made_by.is_none_or(|attempt| attempt < first.id);
                // It is there: it would have left the line.
                _ = first.tell.send(Ok((connection, is_older)));
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> (u64, oneshot::Receiver<Outcome<S>>) {
        let (id, (tell, told)) = (self.next_id(), oneshot::channel());
        self.waiting.push_back(Waiting { id, limit, tell });
        (id, told)
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn attempt(&mut self, id: u64) -> Option<&mut Underway> {
        self.attempts.iter_mut().find(|attempt| attempt.id == id)
    }

    /// How many attempts do not take long yet.
    fn hopeful(&self) -> usize {
        self.attempts.iter().filter(|attempt| !attempt.takes_long()).count()
    }

    /// Begins another attempt if more requests wait than there are hopeful ones, where that many
    /// seats are free. So that there are no more connections than seats, one that takes long may have
    /// to make room, and is returned. Never the one that has been connecting for longest: it ends by
    /// itself, and where all connections take long, there would be none if each were given up.
    fn begin(&mut self, free: usize) -> Option<(u64, Option<Underway>)> {
        if self.hopeful() >= self.waiting.len() {
            return None;
        }
        let is_full = self.attempts.len() >= self.waiting.len() + free;
        let given_up = match is_full {
            true => Some(self.attempts.remove(self.to_be_given_up()?)),
            false => None,
        };
        let id = self.next_id();
        self.attempts.push(Underway { id, since: None, task: None });
        Some((id, given_up))
    }

    /// Of the attempts that take long, where the second oldest is.
    fn to_be_given_up(&self) -> Option<usize> {
        let take_long = |at: &usize| self.attempts[*at].takes_long();
        let mut take_long: Vec<_> = (0..self.attempts.len()).filter(take_long).collect();
        take_long.sort_by_key(|&at| self.attempts[at].since);
        take_long.get(1).copied()
    }

    /// Notes how an attempt ended. Returns the limit of the request that needs another one, if any
    /// does.
    fn end(&mut self, id: u64, opened: Result<S::Connection, S::Failure>) -> Option<Duration> {
        // If it was given up, there is no room for its connection.
        self.attempt(id)?.since = None;
        match opened {
            Ok(connection) => {
                // Otherwise its first request tells.
                if !self.was_in_vain {
                    self.succeed();
                }
                self.leave(connection, Some(id));
            }
            Err(failure) => {
                self.fail_to_connect(failure.clone());
                match failure.is_lasting() {
                    true => self.fail(failure),
                    false if self.hopeful() > self.waiting.len() => (),
                    false => return self.waiting.front().map(|first| first.limit),
                }
            }
        }
        self.forget(id);
        None
    }

    fn succeed(&mut self) {
        self.backoff.succeeded();
        self.last = None;
    }

    fn fail_to_connect(&mut self, failure: S::Failure) {
        self.backoff.failed();
        self.last = Some(failure);
    }

    /// Whether the attempt still counted.
    fn forget(&mut self, id: u64) -> bool {
        let before = self.attempts.len();
        self.attempts.retain(|attempt| attempt.id != id);
        self.attempts.len() < before
    }

    /// Tells whoever has waited longest.
    fn fail(&mut self, failure: S::Failure) {
        if let Some(first) = self.waiting.pop_front() {
            // It is there: it would have left the line.
            _ = first.tell.send(Err(failure));
        }
    }
}

impl Underway {
    fn takes_long(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= LONG)
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
        if let Ok(Ok((connection, _))) = self.told.try_recv() {
            state.leave(connection, None);
        }
    }
}

/// An attempt to connect.
struct Attempt<S: Source> {
    pool: Arc<Pool<S>>,
    id: u64,
}

impl<S: Source> Attempt<S> {
    /// Makes a connection, and tries again for as long as a request waits for it. There is a pause
    /// after a failure, which leaves time to connect within `limit`, since an outage that made
    /// pauses long may be over by now.
    async fn make(self, mut limit: Duration) {
        loop {
            let pause = self.pool.state().backoff.pause();
            sleep(pause.min(LEAST_PAUSE.max(limit / 2))).await;
            if let Some(underway) = self.pool.state().attempt(self.id) {
                underway.since = Some(Instant::now());
            }
            let opened = self.pool.source.connect().await;
            if let Err(failure) = &opened {
                tracing::debug!(endpoint = %self.pool.source, %failure, "could not connect");
            }
            let again = self.pool.state().end(self.id, opened);
            match again {
                Some(of_first) => limit = of_first,
                None => break,
            }
        }
    }
}

impl<S: Source> Drop for Attempt<S> {
    /// The runtime may end before the attempt does.
    fn drop(&mut self) {
        let mut state = self.pool.state();
        if state.forget(self.id) {
            state.fail(NoSeat::Closed.into());
        }
    }
}
