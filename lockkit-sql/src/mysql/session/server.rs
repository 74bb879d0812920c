use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::LockName;
use lockkit_core::driver::{Claim, ErrorKind, OwnerId};
use sqlx::Row as _;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};

use crate::mysql::claims;
use crate::mysql::endpoint::Endpoint;
use crate::mysql::error::{ENDED, Failure, NO_WRITES};
use crate::mysql::kill::{END, INTERRUPT, NO_SUCH_SESSION};
use crate::seats::Source as _;
use crate::session::hold::Keys;
use crate::session::{self, After, FailingStatement, Reply, Request, Server};

const BEGIN: &str = "SET SESSION wait_timeout = ?";
const SESSION: &str = "SELECT GET_LOCK(?, 0) = 1 AS is_ours, CONNECTION_ID() AS id, \
     CAST(@@session.wait_timeout AS SIGNED) AS idle";
const TAKE: &str = include_str!("../sql/session_take.sql");
const WAIT: &str = "SELECT COALESCE(GET_LOCK(?, ?), 0) AS is_ours";
const KEEP: &str = include_str!("../sql/session_keep.sql");
const RELEASE: &str = "SELECT COALESCE(RELEASE_LOCK(?), 0) AS was_held";
/// A primary that was demoted keeps its connections, and some users may still write: by then, locks
/// are another server's.
const BEAT: &str = "SELECT CONNECTION_ID() AS id, \
     CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only";
const IF_ALIVE: &str = "SET @lockkit_session = IF(COALESCE(IS_USED_LOCK(?) = ?, FALSE), ?, 0)";

/// The statements that every session sends.
pub(super) const REQUESTS: &[&str] = &[TAKE, WAIT, KEEP, RELEASE, BEAT];

/// MySQL counts in seconds.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The longest name of a lock that MySQL accepts.
const LONGEST: usize = 64;

/// A MySQL or MariaDB server on which sessions hold locks.
#[derive(Debug)]
pub(super) struct MysqlServer {
    pub(super) endpoint: Endpoint,
    pub(super) keys: Keys,
}

/// A session.
#[derive(Debug)]
pub(super) struct MysqlSession {
    connection: MySqlConnection,
    /// What the session calls itself in rows: a lock that it holds all its life.
    mark: String,
    /// Which session it is, unless something in between gives us another one each time.
    id: Option<u64>,
    longest_wait: Duration,
}

/// What the server knows a lock by.
///
/// MySQL takes no heed of case; MariaDB does. Two names that are the same for one of them exclude
/// each other within a driver, since a session would be let in twice.
#[derive(Clone, Debug)]
pub(super) struct Key {
    text: String,
    /// The folded text, where it is different.
    folded: Option<String>,
}

impl Key {
    fn new(text: &str) -> Self {
        // Letter by letter, as the server does it.
        let fold = |letter: char| letter.to_lowercase().next().unwrap_or(letter);
        let folded: String = text.trim_end().chars().map(fold).collect();
        Self { text: text.into(), folded: (folded != text).then_some(folded) }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    fn folded(&self) -> &str {
        self.folded.as_deref().unwrap_or(&self.text)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.folded() == other.folded()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.folded().hash(state);
    }
}

/// Which session it is. After a restart of the server its id may be another session's; the mark is
/// not.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    id: u64,
    mark: String,
}

impl fmt::Display for MysqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

#[async_trait]
impl Server for MysqlServer {
    type Connection = MysqlSession;
    type Key = Key;
    type Trace = Trace;
    type Failure = Failure;

    fn key(&self, name: &LockName) -> Result<Key, Failure> {
        match self.keys {
            Keys::Hashed => Ok(hashed(name)),
            Keys::Exact if name.as_str().len() <= LONGEST => Ok(Key::new(name.as_str())),
            Keys::Exact => Err(Failure::found(
                ErrorKind::Unsupported,
                "with `keys=exact` the name of a lock has at most 64 bytes",
            )),
        }
    }

    async fn connect(&self) -> Result<MysqlSession, Failure> {
        let mark = OwnerId::random().to_string();
        let connection = self.endpoint.connect().await?;
        Ok(MysqlSession { connection, mark, id: None, longest_wait: SHORTEST_WAIT })
    }

    async fn begin(
        &self,
        session: &mut MysqlSession,
        ttl: Duration,
    ) -> Result<(Duration, Trace), Failure> {
        // Rounded up to what the server counts in.
        let seconds = i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX);
        query(BEGIN).bind(seconds).execute(&mut session.connection).await?;
        let asking = query(SESSION).bind(session.mark.clone());
        let row = one(asking.fetch_all(&mut session.connection).await?)?;
        let trace = Trace { id: row.try_get("id")?, mark: session.mark.clone() };
        session.id = Some(trace.id);
        session.longest_wait = (ttl / 5).clamp(SHORTEST_WAIT, LONGEST_WAIT);
        let idle = u64::try_from(row.try_get::<i64, _>("idle")?).unwrap_or(0);
        let granted = Duration::from_secs(idle);
        if row.try_get::<Option<i32>, _>("is_ours")? != Some(1) || granted < ttl {
            let text = "the server does not let the session set its time-out or lock anything";
            return Err(Failure::found(ErrorKind::Misconfigured, text));
        }
        Ok((granted, trace))
    }

    async fn send(
        &self,
        session: &mut MysqlSession,
        request: &Request<'_, Key, Trace>,
    ) -> Result<Reply, Failure> {
        let MysqlSession { connection, mark, id, longest_wait } = session;
        match request {
            Request::Take { key, claim, .. } => take(connection, TAKE, key, claim, mark).await,
            // As one statement, it would keep a lock on the table while it waits.
            Request::Wait { key, claim } => {
                let waiting = query(WAIT).bind(key.as_str()).bind(longest_wait.as_secs());
                match one(waiting.fetch_all(&mut *connection).await?)?.try_get("is_ours")? {
                    0_i64 => Ok(Reply::Taken { ask_again: false }),
                    _ => match take(connection, KEEP, key, claim, mark).await {
                        // The interruption came too late for the wait. The lock is still held.
                        Err(failure) if failure.is_interruption() => {
                            take(connection, KEEP, key, claim, mark).await
                        }
                        answer => answer,
                    },
                }
            }
            Request::Release { key } | Request::GiveBack { key } => {
                let row = query(RELEASE).bind(key.as_str()).fetch_all(connection).await?;
                let was_held: i64 = one(row)?.try_get("was_held")?;
                Ok(Reply::Unlocked(was_held == 1))
            }
            Request::Interrupt { trace } => {
                kill(connection, INTERRUPT, trace).await?;
                Ok(Reply::Interrupted)
            }
            Request::Bury { trace } => Ok(Reply::Buried(!kill(connection, END, trace).await?)),
            Request::Beat => {
                let row = one(query(BEAT).fetch_all(connection).await?)?;
                match (*id == Some(row.try_get("id")?), row.try_get("is_read_only")?) {
                    (true, false) => Ok(Reply::Alive),
                    (true, true) => Err(Failure::Demoted),
                    (false, _) => Err(Failure::Pooled),
                }
            }
        }
    }

    async fn close(&self, session: MysqlSession) {
        Endpoint::close(session.connection).await;
    }

    /// Waiters of this process wait at the server, or ask again by themselves.
    fn freed(&self, _: &LockName) {}
}

/// Sends a statement that writes the hold's row if the session has the lock.
async fn take(
    connection: &mut MySqlConnection,
    statement: &'static str,
    key: &Key,
    claim: &Claim,
    mark: &str,
) -> Result<Reply, Failure> {
    let name = claim.name();
    let [namespace, name] = [name.namespace().as_str(), name.as_str()];
    let owner = claim.owner().to_string();
    let of_hold = [namespace, name, &owner, claim.label().as_str(), mark];
    let values = [key.as_str()].into_iter().chain(of_hold);
    let values = values.chain([key.as_str()]).chain(of_hold);
    let bind = |query: Query, text: &str| query.bind(text.as_bytes());
    let answer = values.fold(query(statement), bind).execute(connection).await?;
    match answer.rows_affected() {
        0 => Ok(Reply::Taken { ask_again: false }),
        _ => {
            let token = i64::try_from(answer.last_insert_id()).unwrap_or(0);
            Ok(Reply::Granted(claims::token(token)?))
        }
    }
}

/// Ends the session with that trace, or what it does; returns whether the session was there.
async fn kill(
    connection: &mut MySqlConnection,
    statement: &'static str,
    trace: &Trace,
) -> Result<bool, Failure> {
    let asking = query(IF_ALIVE).bind(trace.mark.clone()).bind(trace.id).bind(trace.id);
    asking.execute(&mut *connection).await?;
    match sqlx::raw_sql(statement).execute(connection).await.map_err(Failure::from) {
        Ok(_) => Ok(true),
        Err(failure) if failure.number() == Some(NO_SUCH_SESSION) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// The hash in hexadecimal digits: as many as `GET_LOCK` takes.
fn hashed(name: &LockName) -> Key {
    let hash = session::hash(name);
    let (halves, _) = hash.as_chunks();
    let text = halves.iter().map(|half| format!("{:032x}", u128::from_be_bytes(*half))).collect();
    Key { text, folded: None }
}

type Query = sqlx::query::Query<'static, MySql, MySqlArguments>;

fn query(statement: &'static str) -> Query {
    sqlx::query(statement)
}

fn one(rows: Vec<MySqlRow>) -> Result<MySqlRow, Failure> {
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
        Self::is_interruption(self)
    }

    /// This includes a limit that the administrator has set.
    fn is_impatience(&self) -> bool {
        Self::is_impatience(self) || matches!(self.number(), Some(1969 | 3024))
    }

    fn after(&self) -> After {
        match (self.number(), self) {
            (Some(number), _) if ENDED.contains(&number) || NO_WRITES.contains(&number) => {
                After::Ended
            }
            (None, Self::Demoted) => After::Ended,
            (Some(_), _) | (None, Self::Found { .. }) => After::Stands,
            (None, Self::Client(error)) => After::error_of_the_client(error),
            (None, _) => After::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};

    use super::{Key, hashed};

    /// A client that has other keys does not lock what others hold: a change here is a change of
    /// layout.
    #[test]
    fn keys_are_as_they_were() {
        let name = LockName::new(&Namespace::default(), "orders/42").unwrap();
        let key = hashed(&name);
        assert_eq!(&key.as_str()[..16], "41a3db66e9b48257");
        assert_eq!(key.as_str().len(), 64);
    }

    #[test]
    fn what_is_one_lock_for_some_server_is_one_key() {
        assert_eq!(Key::new("Foo"), Key::new("foo "));
        assert_ne!(Key::new("foo"), Key::new("fo"));
        // Letter by letter, and each of them is one letter.
        assert_eq!(Key::new("İstanbul"), Key::new("istanbul"));
        assert_eq!(Key::new("ΟΔΟΣ"), Key::new("οδοσ"));
    }
}
