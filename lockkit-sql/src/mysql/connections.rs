//! The connections of one driver, and how requests are sent on one of them.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkit_core::driver::{Limit, OwnerId};
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlQueryResult, MySqlRow};
use tokio::time::error::Elapsed;
use tokio::time::{Duration, sleep};

use super::endpoint::Endpoint;
use super::error::Failure;
use crate::late::{Late, see_through};
use crate::query;
use crate::seats::{Seat, Seats, Urgency};

/// How often, at most, a request that met another one is sent again.
const MOST_CONFLICTS: u32 = 20;

/// How much time a request that waited in vain for a row must have left to be sent again: more than
/// the server waits (`sql/greeting.sql`).
const PATIENCE: Duration = Duration::from_millis(1_250);

/// How long the server waits for a row at most. MySQL looks only once a second whether the second is
/// over that it may wait (`sql/greeting.sql`).
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Until its end, a transaction keeps rows locked from everybody, the holder included. If its client
/// is cut off, the server has to notice that by itself, so it ends a session that says nothing for
/// two seconds between two statements. That is more than three losses of a packet in a row cost (0.2,
/// 0.4 and 0.8 s), and less than the three seconds that the request of a default lease has.
const BEGIN: &str = "SET SESSION wait_timeout = 2; START TRANSACTION";
/// The time-out is as it was (`sql/greeting.sql`), even if the end fails.
const COMMIT: &str = "SET SESSION wait_timeout = 28800; COMMIT";
const ROLLBACK: &str = "SET SESSION wait_timeout = 28800; ROLLBACK";

/// The connections of one driver.
#[derive(Debug)]
pub(super) struct Connections {
    seats: Seats<Endpoint>,
    late: Late,
    /// How many answers have come, on whatever connection.
    answers: AtomicU64,
}

/// A parameter of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// All text is kept as bytes.
    Bytes(&'a [u8]),
    Owner(OwnerId),
    Integer(i64),
}

impl<'a> Value<'a> {
    pub(super) fn text(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

/// Statements, each of which depends on the answers to those before it.
pub(super) trait Steps: Sync {
    type Answer: Send;

    /// Carries the statements out. This is repeated if they met others.
    fn take(
        &self,
        transaction: &mut Transaction<'_>,
    ) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
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
        Self { seats, late: Late::new(number, LONGEST_WAIT), answers: AtomicU64::default() }
    }

    /// Waits for a connection, sends a statement that writes, which is a transaction by itself, and
    /// waits for its answer.
    ///
    /// The statement is sent again if the server says that it met another one and was not carried
    /// out. It is also sent again, on another connection, if one that earlier requests have used
    /// has ended; but not if it may have been carried out and twice is not the same as once.
    pub(super) async fn write(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
        urgency: Urgency,
        within: Limit,
    ) -> Result<MySqlQueryResult, Failure> {
        let mut conversation = self.converse_to_write(urgency, within).await?;
        loop {
            let answer = conversation.write(statement, values).await;
            match &answer {
                Err(failure) if conversation.is_worth_another_try(failure).await => (),
                _ => return conversation.end(answer),
            }
        }
    }

    /// Sends a statement that reads, in the same way.
    pub(super) async fn read(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
        within: Limit,
    ) -> Result<Vec<MySqlRow>, Failure> {
        let mut conversation = self.converse(Urgency::Asks, within).await?;
        loop {
            let answer = conversation.read(statement, values).await;
            match &answer {
                Err(failure) if conversation.is_worth_another_try(failure).await => (),
                _ => return conversation.end(answer),
            }
        }
    }

    /// Sends several statements as one transaction. What is not committed when this ends is rolled
    /// back: by us, or by the server, which sees the connection closed.
    pub(super) async fn transact<S: Steps>(
        &self,
        steps: &S,
        urgency: Urgency,
        within: Limit,
    ) -> Result<S::Answer, Failure> {
        self.carry_out(steps, true, urgency, within).await
    }

    /// Sends several statements, one after the other on one connection.
    pub(super) async fn sequence<S: Steps>(
        &self,
        steps: &S,
        urgency: Urgency,
        within: Limit,
    ) -> Result<S::Answer, Failure> {
        self.carry_out(steps, false, urgency, within).await
    }

    async fn carry_out<S: Steps>(
        &self,
        steps: &S,
        as_one: bool,
        urgency: Urgency,
        within: Limit,
    ) -> Result<S::Answer, Failure> {
        let mut conversation = self.converse_to_write(urgency, within).await?;
        loop {
            let answer = match as_one {
                true => conversation.transact(steps).await,
                false => steps.take(&mut conversation).await,
            };
            match &answer {
                Err(failure) if conversation.is_worth_another_try(failure).await => (),
                _ => return conversation.end(answer),
            }
        }
    }

    /// Notes whether an answer shows that something was written.
    pub(super) fn note_write(&self, has_written: bool) {
        if has_written {
            self.late.give_up();
        }
    }

    /// Closes the connections. Requests fail from now on.
    pub(super) async fn close(&self) {
        self.late.give_up();
        self.seats.close().await;
    }

    async fn converse_to_write(
        &self,
        urgency: Urgency,
        within: Limit,
    ) -> Result<Transaction<'_>, Failure> {
        let mut conversation = self.converse(urgency, within).await?;
        conversation.writes = true;
        if self.late.lets_in() {
            return Ok(conversation);
        }
        conversation.seat.give_back(conversation.connection);
        Err(Failure::Unanswered)
    }

    async fn converse(&self, urgency: Urgency, within: Limit) -> Result<Transaction<'_>, Failure> {
        let (seat, connection) = self.seats.sit(urgency, within).await?;
        Ok(Transaction {
            connections: self,
            answers: self.answers.load(Ordering::Relaxed),
            seat,
            connection,
            urgency,
            within,
            conflicts: 0,
            writes: false,
            has_written: false,
            is_open: false,
            doubt: None,
        })
    }
}

/// Requests on one connection. The connection is closed, with whatever was begun on it, unless the
/// last answer shows that nothing is left open.
pub(super) struct Transaction<'a> {
    connections: &'a Connections,
    /// How many answers had come when the last statement was sent.
    answers: u64,
    seat: Seat<'a, Endpoint>,
    connection: MySqlConnection,
    urgency: Urgency,
    within: Limit,
    conflicts: u32,
    /// Whether it may write.
    writes: bool,
    /// Whether a statement has changed something, which does not count until it is committed.
    has_written: bool,
    /// Whether a transaction was begun whose end was not answered.
    is_open: bool,
    /// Why it is not known whether what was sent before was carried out.
    doubt: Option<Failure>,
}

impl Transaction<'_> {
    pub(super) async fn write(
        &mut self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<MySqlQueryResult, Failure> {
        let asking = async { query(statement, values)?.execute(&mut self.connection).await };
        let asked = self.within.bound(asking).await;
        let answer = self.answer(asked)?;
        self.has_written |= answer.rows_affected() > 0;
        Ok(answer)
    }

    pub(super) async fn read(
        &mut self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<MySqlRow>, Failure> {
        let asking = async { query(statement, values)?.fetch_all(&mut self.connection).await };
        let asked = self.within.bound(asking).await;
        self.answer(asked)
    }

    async fn transact<S: Steps>(&mut self, steps: &S) -> Result<S::Answer, Failure> {
        self.is_open = true;
        self.say(BEGIN).await?;
        let answer = steps.take(self).await;
        match &answer {
            Ok(_) => self.say(COMMIT).await?,
            Err(failure) if failure.spoils_the_connection() => return answer,
            // A time-out leaves the transaction open; a deadlock does not.
            Err(_) => self.say(ROLLBACK).await?,
        }
        self.is_open = false;
        self.connections.note_write(self.has_written && answer.is_ok());
        answer
    }

    pub(super) async fn say(&mut self, statement: &'static str) -> Result<(), Failure> {
        let asking = sqlx::raw_sql(statement).execute(&mut self.connection);
        let asked = self.within.bound(asking).await;
        self.answer(asked).map(|_| ())
    }

    /// The answer to what was asked, if there was one in time.
    fn answer<T>(&mut self, asked: Result<Result<T, sqlx::Error>, Elapsed>) -> Result<T, Failure> {
        let asked = asked.map_err(|_| Failure::NoAnswer(self.within.length()))?;
        let answer = asked.map_err(Failure::from);
        if !answer.as_ref().is_err_and(Failure::is_end) {
            self.answers = self.connections.answers.fetch_add(1, Ordering::Relaxed) + 1;
        }
        answer
    }

    /// Whether what was sent before, over another connection, may have been carried out.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Whether what failed is worth sending again, now.
    async fn is_worth_another_try(&mut self, failure: &Failure) -> bool {
        let is_doubtful = failure.leaves_a_doubt();
        if failure.is_end() && (self.urgency == Urgency::Asks || !is_doubtful) {
            self.connections.seats.leave_idle_ones();
            let Some(another) = self.seat.another(self.within).await else { return false };
            self.connection = another;
            self.doubt = self.doubt.take().or_else(|| is_doubtful.then(|| failure.clone()));
            return true;
        }
        self.conflicts += 1;
        let helps = match failure.is_impatience() {
            true => self.within.left() > PATIENCE,
            false => failure.is_conflict() && self.conflicts <= MOST_CONFLICTS,
        };
        if helps {
            sleep(Duration::from_micros(fastrand::u64(0..1_000))).await;
        }
        helps
    }

    /// Whether nothing is answered to this request, as where somebody keeps a row locked, and others
    /// are answered meanwhile: their connections are as good as before.
    fn is_silence_for_one(&self, failure: &Failure) -> bool {
        let answers = self.connections.answers.load(Ordering::Relaxed);
        matches!(failure, Failure::NoAnswer(_)) && answers > self.answers
    }

    fn end<T>(self, answer: Result<T, Failure>) -> Result<T, Failure> {
        match &answer {
            Err(failure) if failure.spoils_the_connection() => {
                let seats = &self.connections.seats;
                tracing::debug!(endpoint = %seats.source(), %failure, "giving up a connection");
                if !self.is_silence_for_one(failure) {
                    seats.leave_idle_ones();
                }
                if failure.is_refused_write() {
                    self.seat.was_in_vain(failure);
                }
                if self.writes && matches!(failure, Failure::NoAnswer(_)) {
                    self.connections.late.keep(see_through(self.connection));
                }
            }
            // Something may be locked yet, and the server would end the session before long.
            _ if self.is_open => (),
            _ => self.seat.give_back(self.connection),
        }
        // What was sent before may have been carried out, however the last attempt fared.
        answer.map_err(|failure| self.doubt.unwrap_or(failure))
    }
}

fn query<'a>(statement: &'static str, values: &[Value<'a>]) -> Result<Query<'a>, sqlx::Error> {
    query::query(statement, values, |query, value| match *value {
        Value::Bytes(bytes) => query.try_bind(bytes),
        Value::Owner(owner) => query.try_bind(owner.to_string().into_bytes()),
        Value::Integer(integer) => query.try_bind(integer),
    })
}

type Query<'a> = sqlx::query::Query<'a, MySql, MySqlArguments>;

#[cfg(test)]
mod tests {
    use super::{COMMIT, ROLLBACK};

    #[test]
    fn the_end_of_a_transaction_puts_the_time_out_back() {
        let greeting = include_str!("sql/greeting.sql");
        for end in [COMMIT, ROLLBACK] {
            let (setting, _) = end.split_once("; ").unwrap();
            let setting = setting.strip_prefix("SET SESSION ").unwrap();
            assert!(greeting.lines().any(|line| line.ends_with(setting)), "{setting}");
        }
    }
}
