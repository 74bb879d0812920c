//! A few connections to a server, each used for one request after another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Backoff, Limit};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Duration, sleep};
use tokio_util::task::AbortOnDropHandle;

/// However much of a hurry a request is in, no pause is cut shorter than this.
const LEAST_PAUSE: Duration = Duration::from_millis(250);

/// Where connections come from.
pub(crate) trait Source: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    type Connection: fmt::Debug + Send + 'static;
    type Failure: Clone + fmt::Debug + fmt::Display + From<NoSeat> + Send + 'static;

    /// The failure to report when there was no connection in time; `last` is how the last attempt
    /// went.
    fn late(limit: Duration, last: Option<Self::Failure>) -> Self::Failure;

    /// Whether waiting for another connection does not help.
    fn is_lasting(failure: &Self::Failure) -> bool;

    /// Opens a connection, or gives up by itself.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Self::Failure>> + Send;

    /// Says goodbye.
    fn close(connection: Self::Connection) -> impl Future<Output = ()> + Send;
}

/// Why a request has nowhere to sit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoSeat {
    /// All seats are taken.
    Busy,
    /// There are no seats any more.
    Closed,
}

/// The connections of one driver.
///
/// Nobody keeps a connection while waiting for a lock. One is left for renewals and releases, so
/// that these never wait for an ask. A connection is made when a request needs it, by a task of its
/// own: a request that gives up waiting does not undo what the next one waits for.
#[derive(Debug)]
pub(crate) struct Seats<S: Source> {
    shared: Arc<Shared<S>>,
    /// One fewer than there are seats.
    permits_of_asks: Semaphore,
}

/// Whether a request may use all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Renewals and releases.
    Keeps,
    /// Everything else: asks and looks, which come to the same if they are sent twice.
    Asks,
}

impl<S: Source> Seats<S> {
    /// `number` seats, of which one has a connection already.
    pub(crate) fn new(source: S, first: S::Connection, number: usize) -> Self {
        let seats = Self::empty(source, number);
        if let Some(seat) = seats.shared.seats().back_mut() {
            *seat = State::Ready(first);
        }
        seats
    }

    /// `number` seats, without connections until there is a request.
    pub(crate) fn empty(source: S, number: usize) -> Self {
        let mut seats = VecDeque::new();
        seats.resize_with(number, || State::Empty);
        let attempts = Mutex::default();
        let (permits, seats) = (Semaphore::new(number), Mutex::new(seats));
        Self {
            shared: Arc::new(Shared { source, permits, seats, attempts }),
            permits_of_asks: Semaphore::new(number - 1),
        }
    }

    /// A seat with a connection, as soon as there is one; fails after `limit`.
    pub(crate) async fn sit(
        &self,
        urgency: Urgency,
        limit: Limit,
    ) -> Result<(Seat<'_, S>, S::Connection), S::Failure> {
        let seat = limit.bound(self.wait(urgency)).await;
        let mut seat = seat.map_err(|_| NoSeat::Busy)?.map_err(|_| NoSeat::Closed)?;
        let connection = seat.connection(limit).await?;
        Ok((seat, connection))
    }

    pub(crate) fn source(&self) -> &S {
        &self.shared.source
    }

    /// Gives up the idle connections: what has ended one connection has probably ended the others,
    /// which nobody looks at.
    pub(crate) fn leave_idle_ones(&self) {
        for state in &mut *self.shared.seats() {
            if matches!(state, State::Ready(_)) {
                *state = State::Empty;
            }
        }
    }

    /// Closes the connections. No request gets a seat from now on.
    pub(crate) async fn close(&self) {
        self.shared.permits.close();
        self.permits_of_asks.close();
        let seats = std::mem::take(&mut *self.shared.seats());
        for state in seats {
            if let State::Ready(connection) = state {
                S::close(connection).await;
            }
        }
    }

    async fn wait(&self, urgency: Urgency) -> Result<Seat<'_, S>, AcquireError> {
        let of_asks = match urgency {
            Urgency::Keeps => None,
            Urgency::Asks => Some(self.permits_of_asks.acquire().await?),
        };
        let permit = self.shared.permits.acquire().await?;
        // There is a seat for each permit, until the seats are taken away.
        let state = self.shared.seats().pop_back().unwrap_or(State::Empty);
        Ok(Seat { shared: &self.shared, state, was_idle: false, _permits: (permit, of_asks) })
    }
}

impl<S: Source> Drop for Seats<S> {
    fn drop(&mut self) {
        self.shared.permits.close();
        // This also drops the connections that are being made.
        self.shared.seats().clear();
    }
}

#[derive(Debug)]
struct Shared<S: Source> {
    source: S,
    /// As many as there are seats.
    permits: Semaphore,
    /// The seats that nobody sits on, the ready ones last.
    seats: Mutex<VecDeque<State<S>>>,
    attempts: Mutex<Attempts<S>>,
}

/// How recent attempts to connect went.
#[derive(Debug)]
struct Attempts<S: Source> {
    backoff: Backoff,
    last: Option<S::Failure>,
}

impl<S: Source> Default for Attempts<S> {
    fn default() -> Self {
        Self { backoff: Backoff::default(), last: None }
    }
}

#[derive(Debug)]
enum State<S: Source> {
    Empty,
    Opening(AbortOnDropHandle<Result<S::Connection, S::Failure>>),
    Ready(S::Connection),
}

/// The right to use one connection. When it is dropped, the seat is left with whatever [`State`] it
/// has by then: empty, unless the connection was given back.
#[derive(Debug)]
pub(crate) struct Seat<'a, S: Source> {
    shared: &'a Arc<Shared<S>>,
    state: State<S>,
    /// Whether the connection was not made for this request.
    was_idle: bool,
    _permits: (SemaphorePermit<'a>, Option<SemaphorePermit<'a>>),
}

impl<S: Source> Seat<'_, S> {
    /// Leaves the connection for the next request.
    pub(crate) fn give_back(mut self, connection: S::Connection) {
        self.state = State::Ready(connection);
    }

    /// A new connection in place of one that has ended, if that one was lying idle, so that nobody
    /// could have seen its end before there was a request. `None` if there is none in time.
    pub(crate) async fn another(&mut self, limit: Limit) -> Option<S::Connection> {
        if !self.was_idle {
            return None;
        }
        let made = self.connection(limit).await;
        // So that no third one is made.
        self.was_idle = false;
        match made {
            Ok(connection) => Some(connection),
            Err(failure) => {
                tracing::debug!(endpoint = %self.shared.source, %failure, "no other connection");
                None
            }
        }
    }

    async fn connection(&mut self, limit: Limit) -> Result<S::Connection, S::Failure> {
        loop {
            if let State::Opening(opening) = &mut self.state {
                // A failure from before this request says little: the cause may be gone.
                let is_old = opening.is_finished();
                self.was_idle = is_old;
                let Ok(opened) = limit.bound(opening).await else {
                    return Err(S::late(limit.length(), self.shared.attempts().last.clone()));
                };
                self.state = State::Empty;
                match opened {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(failure)) if S::is_lasting(&failure) && !is_old => return Err(failure),
                    Ok(Err(_)) => (),
                    // Only the end of the runtime cancels the task.
                    Err(_) => return Err(NoSeat::Closed.into()),
                }
            }
            match std::mem::replace(&mut self.state, State::Empty) {
                State::Ready(connection) => {
                    self.was_idle = true;
                    return Ok(connection);
                }
                _ => {
                    let opening = tokio::spawn(open(Arc::clone(self.shared), limit.length()));
                    self.state = State::Opening(AbortOnDropHandle::new(opening));
                }
            }
        }
    }
}

impl<S: Source> Drop for Seat<'_, S> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Empty);
        let mut seats = self.shared.seats();
        match state {
            _ if self.shared.permits.is_closed() => (),
            State::Ready(_) => seats.push_back(state),
            _ => seats.push_front(state),
        }
    }
}

impl<S: Source> Shared<S> {
    fn seats(&self) -> MutexGuard<'_, VecDeque<State<S>>> {
        // Every change is one call.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts<S>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a connection, after a pause if the last attempt failed. The pause leaves time to connect
/// within `limit`, since an outage that made pauses long may be over by now.
async fn open<S: Source>(
    shared: Arc<Shared<S>>,
    limit: Duration,
) -> Result<S::Connection, S::Failure> {
    let pause = shared.attempts().backoff.pause();
    sleep(pause.min(LEAST_PAUSE.max(limit / 2))).await;
    let opened = shared.source.connect().await;
    let mut attempts = shared.attempts();
    match &opened {
        Ok(_) => {
            attempts.backoff.succeeded();
            attempts.last = None;
        }
        Err(failure) => {
            tracing::debug!(endpoint = %shared.source, %failure, "could not connect");
            attempts.backoff.failed();
            attempts.last = Some(failure.clone());
        }
    }
    opened
}
