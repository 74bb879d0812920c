use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::ErrorKind;
use lockkit_core::{FencingToken, LockName};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, PgSeverity, Postgres};

use crate::postgres::claims;
use crate::postgres::endpoint::Endpoint;
use crate::postgres::error::Failure;
use crate::postgres::subscription::Subscription;
use crate::seats::Source as _;
use crate::session::hold::Keys;
use crate::session::{self, After, Failing, Reply, Request, Server};

const SESSION: &str = include_str!("../sql/session.sql");
const TAKE: &str = "SELECT is_granted, last_token, ask_again \
     FROM lockkit_session_take($1, $2, $3, $4, $5, $6, $7)";
const RELEASE: &str = "SELECT lockkit_session_release($1) AS was_held";
const GIVE_BACK: &str = "SELECT pg_advisory_unlock($1) AS was_held";
const BEAT: &str = "SELECT pg_backend_pid() AS pid";
/// The end of a session is waited for, in milliseconds.
const BURY: &str = "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity \
     WHERE pid = $1 AND backend_start::text = $2";

/// What is asked of every session.
pub(super) const REQUESTS: &[&str] = &[TAKE, RELEASE, BEAT];

/// A PostgreSQL on which sessions hold locks.
#[derive(Debug)]
pub(super) struct PostgresServer {
    pub(super) endpoint: Endpoint,
    pub(super) keys: Keys,
    pub(super) subscription: Subscription,
}

/// A session.
#[derive(Debug)]
pub(super) struct PostgresSession {
    connection: PgConnection,
    /// Which one it is, unless somebody in between gives us another each time.
    pid: Option<i32>,
}

/// Which session: process ids are given again.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pid: i32,
    start: String,
}

#[async_trait]
impl Server for PostgresServer {
    type Connection = PostgresSession;
    type Key = i64;
    type Trace = Trace;
    type Failure = Failure;

    fn key(&self, name: &LockName) -> Result<i64, Failure> {
        match self.keys {
            Keys::Hashed => Ok(hashed(name)),
            Keys::Exact => exact(name),
        }
    }

    async fn connect(&self) -> Result<PostgresSession, Failure> {
        Ok(PostgresSession { connection: self.endpoint.connect().await?, pid: None })
    }

    async fn begin(
        &self,
        session: &mut PostgresSession,
        ttl: Duration,
    ) -> Result<(Duration, Trace), Failure> {
        // Rounded up to what the server counts in.
        let idle = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let (patience, seconds) = ((idle / 5).max(1), |part: i64| (idle / part / 1000).max(1));
        let asking = [idle, patience, seconds(3), seconds(9), idle]
            .into_iter()
            .fold(query(SESSION), |query, setting| query.bind(setting.to_string()));
        let row = one(asking.fetch_all(&mut session.connection).await?)?;
        let trace = Trace { pid: row.try_get("pid")?, start: row.try_get("start")? };
        session.pid = Some(trace.pid);
        Ok((Duration::from_millis(idle.unsigned_abs()), trace))
    }

    async fn bury(&self, session: &mut PostgresSession, trace: &Trace) -> Result<(), Failure> {
        let asking = query(BURY).bind(trace.pid).bind(trace.start.clone());
        asking.fetch_all(&mut session.connection).await?;
        Ok(())
    }

    async fn send(
        &self,
        session: &mut PostgresSession,
        request: &Request<'_, i64>,
    ) -> Result<Reply, Failure> {
        let query = match request {
            Request::Take { key, claim } => query(TAKE)
                .bind(**key)
                .bind(claim.name().namespace().as_str())
                .bind(claim.name().as_str())
                .bind(claim.owner().to_string())
                .bind(claim.label().as_str())
                .bind(i64::try_from(claim.ttl().as_micros()).unwrap_or(i64::MAX))
                .bind(claim.waits()),
            Request::Release { key } => query(RELEASE).bind(**key),
            Request::GiveBack { key } => query(GIVE_BACK).bind(**key),
            Request::Beat => query(BEAT),
        };
        let rows = query.fetch_all(&mut session.connection).await?;
        let row = one(rows)?;
        match request {
            Request::Take { .. } => answer_of_an_ask(&row),
            Request::Release { .. } | Request::GiveBack { .. } => {
                Ok(Reply::Unlocked(row.try_get("was_held")?))
            }
            Request::Beat if session.pid == Some(row.try_get("pid")?) => Ok(Reply::Alive),
            Request::Beat => Err(Failure::Pooled),
        }
    }

    async fn close(&self, session: PostgresSession) {
        Endpoint::close(session.connection).await;
    }

    fn freed(&self, name: &LockName) {
        self.subscription.tell(name);
    }
}

/// 64 bits of the hash.
fn hashed(name: &LockName) -> i64 {
    let hash = session::hash(name);
    i64::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// The number that the name is, written in one way only.
fn exact(name: &LockName) -> Result<i64, Failure> {
    let number = name.as_str().parse::<i64>().ok();
    number.filter(|number| number.to_string() == name.as_str()).ok_or(Failure::found(
        ErrorKind::Unsupported,
        "with `keys=exact` the name of a lock is a number of 64 bits, such as 42 or -7",
    ))
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

type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

fn query(statement: &'static str) -> Query {
    sqlx::query(statement)
}

fn one(rows: Vec<PgRow>) -> Result<PgRow, Failure> {
    rows.into_iter().next().ok_or(Failure::found(ErrorKind::Foreign, "a statement has no answer"))
}

impl Failing for Failure {
    fn no_answer(limit: Duration) -> Self {
        Self::NoAnswer(limit)
    }

    fn no_connection(limit: Duration, last: Option<Self>) -> Self {
        Self::NoConnection { limit, last: last.map(Box::new) }
    }

    fn is_lasting(&self) -> bool {
        Self::is_lasting(self)
    }

    fn after(&self) -> After {
        match (self.answer(), self) {
            (Some(answer), _) if answer.severity() == PgSeverity::Error => After::Stands,
            (Some(_), _) => After::Ended,
            // What was answered cannot be read.
            (None, Self::Found { .. }) => After::Stands,
            (None, Self::Client(error)) => After::error_of_the_client(error),
            (None, _) => After::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};

    use super::{exact, hashed};

    fn name(text: &str) -> LockName {
        LockName::new(&Namespace::default(), text).unwrap()
    }

    /// Who has another key does not lock what others hold: a change here is a change of layout.
    #[test]
    fn keys_are_as_they_were() {
        assert_eq!(hashed(&name("orders/42")), 4_729_865_268_723_221_079);
        let elsewhere = LockName::new(&Namespace::new("other").unwrap(), "orders/42").unwrap();
        assert_ne!(hashed(&elsewhere), hashed(&name("orders/42")));
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
