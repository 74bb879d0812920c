use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::ErrorKind;
use lockkit_core::{FencingToken, LockName};
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgArguments, PgConnection, PgRow, PgSeverity, Postgres};
use sqlx::{Connection as _, Row as _};
use tokio::time::timeout;

use crate::postgres::claims;
use crate::postgres::config::Keys;
use crate::postgres::endpoint::Endpoint;
use crate::postgres::error::Failure;
use crate::postgres::subscription::Subscription;
use crate::seats::Source as _;
use crate::session::{After, Failing, Reply, Request, Server};

const SESSION: &str = include_str!("../sql/session.sql");
const TAKE: &str = "SELECT is_granted, last_token, ask_again \
     FROM lockkit_session_take($1, $2, $3, $4, $5, $6, $7)";
const RELEASE: &str = "SELECT lockkit_session_release($1) AS was_held";
const GIVE_BACK: &str = "SELECT pg_advisory_unlock($1) AS was_held";
const BEAT: &str = "SELECT pg_backend_pid() AS pid";
const SWEEP: &str = "SELECT lockkit_session_sweep()";

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

#[async_trait]
impl Server for PostgresServer {
    type Connection = PostgresSession;
    type Key = i64;
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
    ) -> Result<Duration, Failure> {
        // Rounded up to what the server counts in.
        let idle = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let (patience, seconds) = ((idle / 5).max(1), |part: i64| (idle / part / 1000).max(1));
        let query = [idle, patience, seconds(3), seconds(9), idle]
            .into_iter()
            .fold(query(SESSION), |query, setting| query.bind(setting.to_string()));
        query.fetch_all(&mut session.connection).await?;
        let row = one(query_scalar(&mut session.connection).await?)?;
        session.pid = Some(row.try_get("pid")?);
        Ok(Duration::from_millis(idle.unsigned_abs()))
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
            Request::Sweep => query(SWEEP),
        };
        let rows = match query.fetch_all(&mut session.connection).await.map_err(Failure::from) {
            Err(failure) if failure.after() == After::Ended => {
                see_out(&mut session.connection).await;
                return Err(failure);
            }
            rows => rows?,
        };
        let row = one(rows)?;
        match request {
            Request::Take { .. } => answer_of_an_ask(&row),
            Request::Release { .. } | Request::GiveBack { .. } => {
                Ok(Reply::Unlocked(row.try_get("was_held")?))
            }
            Request::Beat if session.pid == Some(row.try_get("pid")?) => Ok(Reply::Alive),
            Request::Beat => Err(Failure::Pooled),
            Request::Sweep => Ok(Reply::Alive),
        }
    }

    async fn close(&self, session: PostgresSession) {
        Endpoint::close(session.connection).await;
    }

    fn freed(&self, name: &LockName) {
        self.subscription.tell(name);
    }
}

/// Returns when the server has let go of what the session held: it says that it ends the session
/// before that, and closes the connection after it.
async fn see_out(connection: &mut PgConnection) {
    const LIMIT: Duration = Duration::from_secs(1);
    match timeout(LIMIT, connection.ping()).await {
        Ok(outcome) => tracing::debug!(?outcome, "the server has ended the session"),
        Err(_) => tracing::debug!("the server is slow to end the session"),
    }
}

/// 64 bits of a wide hash, which is not that of whoever else hashes names.
fn hashed(name: &LockName) -> i64 {
    let hash = Sha256::new().chain_update("lockkit session\0").chain_update(name.digest());
    let hash = hash.finalize();
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

async fn query_scalar(connection: &mut PgConnection) -> Result<Vec<PgRow>, Failure> {
    Ok(query(BEAT).fetch_all(connection).await?)
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
            (None, Self::Client(error)) if error.is_about_an_answer() => After::Stands,
            (None, _) => After::Broken,
        }
    }
}

/// Errors of the client library that are no errors of the connection.
trait IsAboutAnAnswer {
    fn is_about_an_answer(&self) -> bool;
}

impl IsAboutAnAnswer for sqlx::Error {
    fn is_about_an_answer(&self) -> bool {
        matches!(
            self,
            Self::ColumnNotFound(_)
                | Self::ColumnDecode { .. }
                | Self::Decode(_)
                | Self::RowNotFound
        )
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
