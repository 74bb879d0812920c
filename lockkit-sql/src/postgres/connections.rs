//! A few connections for requests, each used for one request after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Duration, Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::{self, Endpoint};
use super::error::Failure;
use crate::backoff::Backoff;

/// How often a request is sent again that met another one.
const MOST_CONFLICTS: u32 = 20;

/// The connections of one driver.
///
/// Nobody keeps one while waiting for a lock. One is left for renewals and releases, so that these
/// wait for no ask. A connection is made when a request needs it, by a task of its own: a request
/// that gives up waiting does not undo what the next one waits for.
#[derive(Debug)]
pub(super) struct Connections {
    shared: Arc<Shared>,
    /// One less than there are seats.
    permits_of_asks: Semaphore,
}

/// Who may use all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Renewals and releases.
    Keeps,
    /// Whatever else.
    Asks,
}

/// A parameter of a request.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(Option<String>),
    Integer(i64),
    Boolean(bool),
    /// How many milliseconds the server may wait for a row: fewer than are left for the answer.
    Patience,
}

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }
}

impl Connections {
    /// Connects for the first time, with one attempt.
    pub(super) async fn open(endpoint: Endpoint, number: usize) -> Result<Self, Failure> {
        let first = endpoint.found().await?;
        let mut seats = VecDeque::new();
        seats.resize_with(number - 1, || State::Empty);
        seats.push_back(State::Ready(first));
        let attempts = Mutex::default();
        Ok(Self {
            shared: Arc::new(Shared {
                endpoint,
                permits: Semaphore::new(number),
                seats: Mutex::new(seats),
                attempts,
            }),
            permits_of_asks: Semaphore::new(number - 1),
        })
    }

    /// Sends a request and waits for its answer, and for a connection before that, for `limit` in
    /// all.
    ///
    /// Sent again where the server says that it met another one and was not carried out, which
    /// it does where transactions are `REPEATABLE READ` by default.
    pub(super) async fn request(
        &self,
        statement: &'static str,
        values: &[Value],
        urgency: Urgency,
        limit: Duration,
    ) -> Result<Vec<PgRow>, Failure> {
        let deadline = Instant::now() + limit;
        let sitting = timeout_at(deadline, self.sit(urgency));
        let mut seat = sitting.await.map_err(|_| Failure::Busy)?.map_err(|_| Failure::Closed)?;
        let mut connection = seat.connection(deadline, limit).await?;
        let mut conflicts = 0;
        let failure = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let bind = |query, value| bind(query, value, left);
            let query = values.iter().cloned().fold(sqlx::query(statement), bind);
            match timeout_at(deadline, query.fetch_all(&mut connection)).await {
                Ok(Ok(rows)) => {
                    seat.state = State::Ready(connection);
                    return Ok(rows);
                }
                Ok(Err(error)) => {
                    let failure = Failure::from(error);
                    conflicts += 1;
                    if !failure.is_conflict() || conflicts > MOST_CONFLICTS {
                        break failure;
                    }
                    sleep(Duration::from_micros(fastrand::u64(0..1_000))).await;
                }
                Err(_) => break Failure::NoAnswer(limit),
            }
        };
        if failure.spoils_the_connection() {
            tracing::debug!(endpoint = %self.shared.endpoint, %failure, "giving up a connection");
            // What ended this one has probably ended the others that nobody looks at.
            self.shared.leave_idle_ones();
        } else {
            seat.state = State::Ready(connection);
        }
        Err(failure)
    }

    /// Whether a pooler was found to give our sessions to others as well.
    pub(super) fn are_pooled(&self) -> bool {
        self.shared.endpoint.is_pooled()
    }

    /// Closes the connections. Requests fail from now on.
    pub(super) async fn close(&self) {
        self.shared.permits.close();
        self.permits_of_asks.close();
        let seats = std::mem::take(&mut *self.shared.seats());
        for state in seats {
            if let State::Ready(connection) = state {
                endpoint::close(connection).await;
            }
        }
    }

    async fn sit(&self, urgency: Urgency) -> Result<Seat<'_>, AcquireError> {
        let of_asks = match urgency {
            Urgency::Keeps => None,
            Urgency::Asks => Some(self.permits_of_asks.acquire().await?),
        };
        let permit = self.shared.permits.acquire().await?;
        // There is one for each permit, until the seats are taken away.
        let state = self.shared.seats().pop_back().unwrap_or(State::Empty);
        Ok(Seat { shared: &self.shared, state, _permits: (permit, of_asks) })
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.shared.permits.close();
        // Also those that are being made.
        self.shared.seats().clear();
    }
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    /// As many as there are seats.
    permits: Semaphore,
    /// Those that nobody sits on, the ready ones last.
    seats: Mutex<VecDeque<State>>,
    attempts: Mutex<Attempts>,
}

/// How connecting went lately.
#[derive(Debug, Default)]
struct Attempts {
    backoff: Backoff,
    last: Option<Failure>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Opening(AbortOnDropHandle<Result<PgConnection, Failure>>),
    Ready(PgConnection),
}

/// The right to use one connection. Left with whatever [`State`] it has by then: empty, if the
/// request was dropped in the middle.
struct Seat<'a> {
    shared: &'a Arc<Shared>,
    state: State,
    _permits: (SemaphorePermit<'a>, Option<SemaphorePermit<'a>>),
}

impl Seat<'_> {
    /// The connection, as soon as there is one.
    async fn connection(
        &mut self,
        deadline: Instant,
        limit: Duration,
    ) -> Result<PgConnection, Failure> {
        loop {
            if let State::Opening(opening) = &mut self.state {
                // A failure from before this request says little: the cause may be gone.
                let is_old = opening.is_finished();
                let Ok(opened) = timeout_at(deadline, opening).await else {
                    let last = self.shared.attempts().last.clone().map(Box::new);
                    return Err(Failure::NoConnection { limit, last });
                };
                self.state = State::Empty;
                match opened {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(failure)) if failure.is_lasting() && !is_old => return Err(failure),
                    Ok(Err(_)) => (),
                    // Only the end of the runtime takes the task away.
                    Err(_) => return Err(Failure::Closed),
                }
            }
            match std::mem::take(&mut self.state) {
                State::Ready(connection) => return Ok(connection),
                _ => {
                    let opening = tokio::spawn(open(Arc::clone(self.shared)));
                    self.state = State::Opening(AbortOnDropHandle::new(opening));
                }
            }
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let state = std::mem::take(&mut self.state);
        let mut seats = self.shared.seats();
        match state {
            _ if self.shared.permits.is_closed() => (),
            State::Ready(_) => seats.push_back(state),
            _ => seats.push_front(state),
        }
    }
}

impl Shared {
    fn seats(&self) -> MutexGuard<'_, VecDeque<State>> {
        // Every change is one call.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave_idle_ones(&self) {
        for state in &mut *self.seats() {
            if matches!(state, State::Ready(_)) {
                *state = State::Empty;
            }
        }
    }
}

/// Makes a connection, after a pause if the last attempt failed.
async fn open(shared: Arc<Shared>) -> Result<PgConnection, Failure> {
    let pause = shared.attempts().backoff.pause();
    sleep(pause).await;
    let opened = shared.endpoint.connect().await;
    let mut attempts = shared.attempts();
    match &opened {
        Ok(_) => {
            attempts.backoff.succeeded();
            attempts.last = None;
        }
        Err(failure) => {
            tracing::debug!(endpoint = %shared.endpoint, %failure, "could not connect");
            attempts.backoff.failed();
            attempts.last = Some(failure.clone());
        }
    }
    opened
}

type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

fn bind(query: Query, value: Value, left: Duration) -> Query {
    match value {
        Value::Text(text) => query.bind(text),
        Value::Integer(integer) => query.bind(integer),
        Value::Boolean(boolean) => query.bind(boolean),
        // 0 would mean for ever.
        Value::Patience => {
            let patience = (left / 4 * 3).as_millis();
            query.bind(i32::try_from(patience).unwrap_or(i32::MAX).max(1))
        }
    }
}
