//! The connections of one driver, and how a request is sent on one of them.

use lockkit_core::driver::{Limit, OwnerId};
use sqlx::Executor as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};
use tokio::time::{Duration, sleep};

use super::endpoint::Endpoint;
use super::error::Failure;
use crate::late::{Late, see_through};
use crate::query::query;
use crate::seats::{Seats, Urgency};

/// How a transaction begins in which nobody waits for more than a second, each time, for what others
/// keep locked. It ends with the transaction: a pooler gives the session to others.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = 1000";
/// Takes everything back, if a statement has failed.
const COMMIT: &str = "COMMIT";

/// The connections of one driver.
#[derive(Debug)]
pub(super) struct Connections {
    seats: Seats<Endpoint>,
    late: Late,
}

/// A parameter of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Text(&'a str),
    /// Where to be told, if at all.
    Inbox(Option<&'a str>),
    Owner(Option<OwnerId>),
    Owners(&'a [OwnerId]),
    Texts(&'a [&'a str]),
    Integer(i64),
    Boolean(bool),
    /// How many milliseconds the server may wait at a time for what others keep locked, so that it
    /// gives up before the answer is due.
    Patience,
}

/// What has the server give up waiting for what others keep locked, so that no session is left
/// behind by a client that has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The statement itself.
    AsItSays,
    /// The transaction around it.
    AsWeSay,
}

impl Connections {
    /// Connects for the first time, with one attempt.
    pub(super) async fn open(endpoint: Endpoint, number: usize) -> Result<Self, Failure> {
        let first = endpoint.found().await?;
        Ok(Self::with(Seats::new(endpoint, first, number), number))
    }

    /// Connects when there is a request, even for the first time.
    pub(super) fn new(endpoint: Endpoint, number: usize) -> Self {
        Self::with(Seats::empty(endpoint, number), number)
    }

    fn with(seats: Seats<Endpoint>, number: usize) -> Self {
        Self { seats, late: Late::new(number, Duration::ZERO) }
    }

    /// Waits for a connection, sends a request and waits for its answer, for `limit` in all.
    ///
    /// Within that time, the request is sent again if the server says that it met another one and
    /// was not carried out, which it does where transactions are `REPEATABLE READ` by default. It
    /// is also sent again, on another connection, if one that earlier requests have used has ended;
    /// but not if it may have been carried out and twice is not the same as once.
    ///
    /// The statement says how long the server may wait for what others keep locked.
    pub(super) async fn request(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
        urgency: Urgency,
        limit: Duration,
    ) -> Result<Vec<PgRow>, Failure> {
        self.send(statement, values, Waits::AsItSays, urgency, limit).await
    }

    /// The same for a statement that names tables and is no more urgent than an ask. The server locks
    /// these before it carries anything out, so the statement comes too late to say how long to wait:
    /// another one comes first, in the same transaction. It takes three round trips.
    pub(super) async fn request_of_tables(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
        limit: Duration,
    ) -> Result<Vec<PgRow>, Failure> {
        self.send(statement, values, Waits::AsWeSay, Urgency::Asks, limit).await
    }

    async fn send(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
        waits: Waits,
        urgency: Urgency,
        limit: Duration,
    ) -> Result<Vec<PgRow>, Failure> {
        let limit = Limit::new(limit);
        let (mut seat, mut connection) = self.seats.sit(urgency, limit).await?;
        // The others only read, or are rare.
        if waits == Waits::AsItSays && !self.late.lets_in() {
            seat.give_back(connection);
            return Err(Failure::Unanswered);
        }
        let (mut conflicts, mut doubt) = (0_u32, None);
        let failure = loop {
            let left = limit.left();
            let query = query(statement, values, |query, value| bind(query, value, left));
            let asking = async { ask(&mut connection, query?, waits).await };
            match limit.bound(asking).await {
                Ok(Ok(rows)) => {
                    seat.give_back(connection);
                    return Ok(rows);
                }
                Ok(Err(failure)) => {
                    let may_be_repeated = urgency == Urgency::Asks || !failure.leaves_a_doubt();
                    if failure.is_end() && may_be_repeated {
                        self.seats.leave_idle_ones();
                        let Some(another) = seat.another(limit).await else { break failure };
                        connection = another;
                        doubt = doubt.or(Some(failure).filter(Failure::leaves_a_doubt));
                        continue;
                    }
                    conflicts += 1;
                    // The more often it meets others, the more of them there are.
                    let longest = 1_000 * u64::from(conflicts.min(10));
                    let pause = Duration::from_micros(fastrand::u64(0..longest));
                    if !failure.is_conflict() || pause >= limit.left() {
                        break failure;
                    }
                    sleep(pause).await;
                }
                Err(_) => break Failure::NoAnswer(limit.length()),
            }
        };
        if failure.spoils_the_connection() {
            tracing::debug!(endpoint = %self.seats.source(), %failure, "giving up a connection");
            self.seats.leave_idle_ones();
            if failure.is_refused_write() {
                seat.was_in_vain(&failure);
            }
            if waits == Waits::AsItSays && matches!(failure, Failure::NoAnswer(_)) {
                self.late.keep(see_through(connection));
            }
        } else {
            seat.give_back(connection);
        }
        // What was sent before may have been carried out, however the last attempt fared.
        Err(doubt.unwrap_or(failure))
    }

    /// Notes whether an answer shows that something was written.
    pub(super) fn note_write(&self, has_written: bool) {
        if has_written {
            self.late.give_up();
        }
    }

    /// Whether a pooler was found to give our sessions to others as well.
    pub(super) fn are_pooled(&self) -> bool {
        self.seats.source().is_pooled()
    }

    /// Closes the connections. Requests fail from now on.
    pub(super) async fn close(&self) {
        self.late.give_up();
        self.seats.close().await;
    }
}

/// Sends a query, and waits for its answer.
pub(super) async fn ask(
    connection: &mut PgConnection,
    query: Query<'_>,
    waits: Waits,
) -> Result<Vec<PgRow>, Failure> {
    match waits {
        Waits::AsItSays => Ok(query.fetch_all(connection).await?),
        Waits::AsWeSay => in_transaction(connection, query).await,
    }
}

/// Sends a query in a transaction of its own, so that it waits for nothing for long.
async fn in_transaction(
    connection: &mut PgConnection,
    query: Query<'_>,
) -> Result<Vec<PgRow>, Failure> {
    connection.execute(sqlx::raw_sql(BEGIN)).await?;
    let rows = query.fetch_all(&mut *connection).await.map_err(Failure::from);
    // The transaction stands where the query has failed, too, unless the connection goes as well.
    if !rows.as_ref().is_err_and(Failure::spoils_the_connection) {
        connection.execute(sqlx::raw_sql(COMMIT)).await?;
    }
    rows
}

type Query<'a> = sqlx::query::Query<'a, Postgres, PgArguments>;

fn bind<'a>(query: &mut Query<'a>, value: &Value<'a>, left: Duration) -> Result<(), BoxDynError> {
    match *value {
        Value::Text(text) => query.try_bind(text),
        Value::Inbox(inbox) => query.try_bind(inbox),
        Value::Owner(owner) => query.try_bind(owner.map(|owner| owner.to_string())),
        Value::Owners(owners) => {
            query.try_bind(owners.iter().map(OwnerId::to_string).collect::<Vec<_>>())
        }
        Value::Texts(texts) => query.try_bind(texts),
        Value::Integer(integer) => query.try_bind(integer),
        Value::Boolean(boolean) => query.try_bind(boolean),
        // The server times each wait separately, and a row takes two: until this request is first
        // in line for it, and until whoever keeps it locked is done. 0 would mean for ever.
        Value::Patience => {
            let patience = (left / 8 * 3).as_millis();
            query.try_bind(i32::try_from(patience).unwrap_or(i32::MAX).max(1))
        }
    }
}
