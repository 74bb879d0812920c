use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Claim, ErrorKind};
use lockkit_core::{FencingToken, LockName};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};

use crate::micros::micros;
use crate::postgres::claims;
use crate::postgres::endpoint::{self, Endpoint, Session};
use crate::postgres::error::Failure;
use crate::seats::Source as _;
use crate::session::hold::Keys;
use crate::session::{self, After, FailingStatement, Reply, Request, Server};
use crate::subscription::Subscription;

const SESSION: &str = include_str!("../sql/session.sql");
const TAKE: &str = "SELECT is_granted, last_token, ask_again \
     FROM lockkit_session_take($1::bigint, $2::text, $3::text, $4::text, $5::text, $6::bigint, \
                               $7::boolean)";
/// The session's `lock_timeout` is how long it waits. The function, which comes after the wait
/// since it needs the key, locks once more.
const WAIT: &str = "SELECT taken.is_granted, taken.last_token, taken.ask_again, \
            pg_advisory_unlock(waited.key) AS was_locked_twice \
     FROM (SELECT $1::bigint AS key, pg_advisory_lock($1) OFFSET 0) AS waited, \
          LATERAL lockkit_session_take(waited.key, $2::text, $3::text, $4::text, $5::text, \
                                       $6::bigint, $7::boolean) AS taken";
const RELEASE: &str = "SELECT lockkit_session_release($1::bigint) AS was_held";
const GIVE_BACK: &str = include_str!("../sql/session_give_back.sql");
/// A server that takes no writes any more keeps its sessions: by then, locks are another server's.
const BEAT: &str = endpoint::SESSION;
const SIGNAL: &str = include_str!("../sql/session_signal.sql");

/// In milliseconds. While a statement waits, what others delete meanwhile is not cleared away.
const LONGEST_WAIT: i64 = 10_000;

/// How many keepalives in a row have had no answer when the server ends the session, unless its
/// system also has a time limit for data that is not acknowledged.
const KEEPALIVES: i64 = 6;

/// The statements that every session sends.
pub(super) const REQUESTS: &[&str] = &[TAKE, WAIT, RELEASE, BEAT];

/// A PostgreSQL server on which sessions hold locks.
#[derive(Debug)]
pub(super) struct PostgresServer {
    pub(super) endpoint: Endpoint,
    pub(super) keys: Keys,
    pub(super) subscription: Subscription,
    /// A connection for the first session.
    pub(super) first: Mutex<Option<PgConnection>>,
}

/// A session.
#[derive(Debug)]
pub(super) struct PostgresSession {
    connection: PgConnection,
    /// Which session it is, unless something in between gives us another one each time.
    pid: Option<i32>,
}

/// Which session it is: the two random numbers that it keeps locked from its beginning on. A pooler
/// that gives the session to another client unlocks them together with all that we held; it leaves
/// the process id and the beginning as they were.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    high: i32,
    low: i32,
}

impl fmt::Display for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

#[async_trait]
impl Server for PostgresServer {
    type Connection = PostgresSession;
    type Key = i64;
    type Trace = Mark;
    type Failure = Failure;

    fn key(&self, name: &LockName) -> Result<i64, Failure> {
        match self.keys {
            Keys::Hashed => Ok(hashed(name)),
            Keys::Exact => exact(name),
        }
    }

    async fn connect(&self) -> Result<PostgresSession, Failure> {
        // Nothing panics while it holds the lock.
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connection = match first {
            Some(connection) => connection,
            None => self.endpoint.connect().await?,
        };
        Ok(PostgresSession { connection, pid: None })
    }

    async fn begin(
        &self,
        session: &mut PostgresSession,
        ttl: Duration,
    ) -> Result<(Duration, Mark), Failure> {
        // Rounded up to what the server counts in.
        let idle = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let patience = (idle / 5).clamp(1, LONGEST_WAIT);
        let [first, apart] = keepalives(idle);
        let asking = [idle, patience, first, apart, KEEPALIVES, idle]
            .into_iter()
            .fold(query(SESSION), |query, setting| query.bind(setting.to_string()));
        let row = one(asking.fetch_all(&mut session.connection).await?)?;
        let Session { pid, is_read_only } = Session::of(&row)?;
        if is_read_only {
            return Err(Failure::Demoted);
        }
        session.pid = Some(pid);
        let mark = Mark { high: row.try_get("high")?, low: row.try_get("low")? };
        Ok((Duration::from_millis(idle.unsigned_abs()), mark))
    }

    async fn send(
        &self,
        session: &mut PostgresSession,
        request: &Request<'_, i64, Mark>,
    ) -> Result<Reply, Failure> {
        let query = match request {
            Request::Take { key, claim, listens } => take(TAKE, **key, claim, *listens),
            Request::Wait { key, claim } => take(WAIT, **key, claim, false),
            Request::Interrupt { trace } => signal(trace, false),
            Request::Bury { trace } => signal(trace, true),
            Request::Release { key } => query(RELEASE).bind(**key),
            Request::GiveBack { key } => query(GIVE_BACK).bind(**key),
            Request::Beat => query(BEAT),
        };
        let rows = query.fetch_all(&mut session.connection).await?;
        match request {
            Request::Take { .. } | Request::Wait { .. } => answer_of_an_ask(&one(rows)?),
            // There is no row for a session that has unlocked its mark, be it before other locks.
            Request::Interrupt { .. } => Ok(Reply::Interrupted),
            Request::Bury { .. } => Ok(Reply::Buried(rows.is_empty())),
            Request::Release { .. } | Request::GiveBack { .. } => {
                Ok(Reply::Unlocked(one(rows)?.try_get("was_held")?))
            }
            Request::Beat => {
                let answers = Session::of(&one(rows)?)?;
                match (session.pid == Some(answers.pid), answers.is_read_only) {
                    (true, false) => Ok(Reply::Alive),
                    (true, true) => Err(Failure::Demoted),
                    (false, _) => Err(Failure::Pooled),
                }
            }
        }
    }

    async fn close(&self, session: PostgresSession) {
        Endpoint::close(session.connection).await;
    }

    fn freed(&self, name: &LockName) {
        match self.keys {
            Keys::Hashed => self.subscription.tell(name),
            Keys::Exact => self.subscription.tell_in_all_namespaces(name),
        }
    }
}

/// For a session of that many milliseconds: when keepalives begin and how far apart they are, in
/// seconds. The server gives the session up when its holder does, or later: both are rounded up.
fn keepalives(idle: i64) -> [i64; 2] {
    // Negative numbers do not occur.
    let millis = idle.unsigned_abs();
    [3, 9].map(|part| i64::try_from(millis.div_ceil(part * 1000)).unwrap_or(i64::MAX).max(1))
}

/// 64 bits of the hash.
fn hashed(name: &LockName) -> i64 {
    let hash = session::hash(name);
    i64::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// The number that the name is, if it is written in the one way that is accepted.
fn exact(name: &LockName) -> Result<i64, Failure> {
    let number = name.as_str().parse::<i64>().ok();
    number.filter(|number| number.to_string() == name.as_str()).ok_or(Failure::found(
        ErrorKind::Unsupported,
        "with `keys=exact` the name of a lock is a number of 64 bits, such as 42 or -7",
    ))
}

fn take<'q>(statement: &'static str, key: i64, claim: &'q Claim, listens: bool) -> Query<'q> {
    query(statement)
        .bind(key)
        .bind(claim.name().namespace().as_str())
        .bind(claim.name().as_str())
        .bind(claim.owner().to_string())
        .bind(claim.label().as_str())
        .bind(micros(claim.ttl()))
        .bind(listens)
}

fn signal(mark: &Mark, ends: bool) -> Query<'static> {
    query(SIGNAL).bind(mark.high).bind(mark.low).bind(ends)
}

fn answer_of_an_ask(row: &PgRow) -> Result<Reply, Failure> {
    Ok(match row.try_get("is_granted")? {
        true => Reply::Granted(token(row)?),
        false => Reply::Taken { ask_again: row.try_get("ask_again")? },
    })
}

fn token(row: &PgRow) -> Result<FencingToken, Failure> {
    claims::token(row.try_get("last_token")?)
}

type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

fn query<'q>(statement: &'static str) -> Query<'q> {
    sqlx::query(statement)
}

fn one(rows: Vec<PgRow>) -> Result<PgRow, Failure> {
    rows.into_iter().next().ok_or(Failure::found(ErrorKind::Foreign, "a statement has no answer"))
}

impl FailingStatement for Failure {
    fn no_answer(limit: Duration) -> Self {
        Self::NoAnswer(limit)
    }

    fn leaves_a_doubt(&self) -> bool {
        Self::leaves_a_doubt(self)
    }

    fn is_interruption(&self) -> bool {
        self.answer().is_some_and(|answer| answer.code() == "57014")
    }

    fn is_impatience(&self) -> bool {
        self.answer().is_some_and(|answer| answer.code() == "55P03")
    }

    fn after(&self) -> After {
        match (self.answer(), self) {
            (Some(_), _) if self.is_end() || self.is_refused_write() => After::Ended,
            (Some(_), _) => After::Stands,
            (None, Self::Demoted) => After::Ended,
            // The answer cannot be read.
            (None, Self::Found { .. }) => After::Stands,
            (None, Self::Client(error)) => After::error_of_the_client(error),
            (None, _) => After::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};

    use super::super::CAPABILITIES;
    use super::{KEEPALIVES, exact, hashed, keepalives};

    fn name(text: &str) -> LockName {
        LockName::new(&Namespace::default(), text).unwrap()
    }

    /// A client that has other keys does not lock what others hold: a change here is a change of
    /// layout.
    #[test]
    fn keys_are_as_they_were() {
        assert_eq!(hashed(&name("orders/42")), 4_729_865_268_723_221_079);
        let elsewhere = LockName::new(&Namespace::new("other").unwrap(), "orders/42").unwrap();
        assert_ne!(hashed(&elsewhere), hashed(&name("orders/42")));
    }

    /// Otherwise somebody else would have the lock while its holder still believes in it.
    #[test]
    fn keepalives_end_no_session_before_its_time() {
        let [least, most] = [CAPABILITIES.min_ttl, CAPABILITIES.max_ttl].map(|ttl| ttl.as_millis());
        // The step is no multiple of a second, so that all remainders come up.
        for millis in (least..=most).step_by(97).chain([most]) {
            let millis = i64::try_from(millis).unwrap();
            let [first, apart] = keepalives(millis);
            assert!(first >= 1 && apart >= 1, "{millis}");
            assert!((first + KEEPALIVES * apart) * 1000 >= millis, "{millis}: {first}, {apart}");
        }
    }

    #[test]
    fn an_exact_key_is_a_number_in_its_one_spelling() {
        for number in [0, 42, -7, i64::MIN, i64::MAX] {
            assert_eq!(exact(&name(&number.to_string())).unwrap(), number);
        }
        for text in ["007", "+7", "-0", " 7", "7.0", "9223372036854775808", "seven"] {
            assert!(exact(&name(text)).is_err(), "{text:?} was accepted");
        }
    }
}
