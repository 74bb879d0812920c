//! The session that sleeps until somebody rings, and what it then hears.

use lockkit_core::driver::{ErrorKind, Limit};
use lockkit_core::{LockName, Namespace};
use sqlx::Row as _;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use tokio::time::{Duration, Instant, timeout};

use super::{LIMIT, Line, deliver};
use crate::mysql::connections::{Steps, Transaction, Value};
use crate::mysql::endpoint::Endpoint;
use crate::mysql::error::Failure;
use crate::mysql::inspect::{bytes_of, name_of};
use crate::seats::{Source as _, Urgency};
use crate::subscription::{Board, Listener, key};

const LISTEN: &str = include_str!("../sql/listen.sql");
const DROP_HEARD: &str = "DELETE FROM lockkit_bell WHERE inbox = ? AND told < 0 \
     AND expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) \
     AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')";
const HEARD: &str = "UPDATE lockkit_bell SET told = -told \
     WHERE namespace = ? AND name = ? AND inbox = ? AND told = ?";
const HEARD_TOGETHER: &str = include_str!("../sql/heard_together.sql");
/// How many locks `HEARD_TOGETHER` is for.
const TOGETHER: usize = 16;
const CLOSE: &str =
    "SELECT COALESCE(IF(IS_USED_LOCK(?) IS NULL, GET_LOCK(?, 0), 0), 0) AS is_closed_now";
const OPEN: &str = "DO RELEASE_LOCK(?)";

/// After this time, a row that was told is of no use.
const STALE: Duration = Duration::from_secs(12);

/// A session that sleeps until somebody rings.
#[derive(Debug)]
pub(super) struct Sleeper {
    connection: MySqlConnection,
    mark: String,
    gate: String,
    line: Line,
    /// The lock whose waiters were told when somebody rang, before it was read which one is meant.
    guess: Option<String>,
    /// When it last heard something of which a row is left.
    heard: Option<Instant>,
}

impl Sleeper {
    /// A sleeper whose connection has the mark.
    pub(super) fn new(connection: MySqlConnection, mark: String, gate: String, line: Line) -> Self {
        Self { connection, mark, gate, line, guess: None, heard: None }
    }
}

impl Listener for Sleeper {
    type Failure = Failure;

    async fn hear(&mut self, board: &Board) -> Result<(), Failure> {
        let Some(told) = self.sleep().await? else {
            self.guess = board.deliver_to_those_of_one();
            return Ok(());
        };
        let guess = self.guess.take();
        let in_vain = |name| {
            let key = key(name);
            // A waiter that was told by a guess may have the lock by now, and another one have been
            // told since.
            let is_guessed = guess.as_ref() == Some(&key);
            let is_known = is_guessed && board.was_told(&key);
            !is_known && !deliver(board, name) && !is_guessed
        };
        let in_vain: Vec<_> = told.iter().filter(|(name, _)| in_vain(name)).collect();
        for some in told.chunks(TOGETHER) {
            self.note_heard(some).await?;
        }
        // This process no longer waits: another one may.
        for (name, _) in in_vain {
            self.line.ring(name, false, board, Limit::new(LIMIT)).await;
        }
        if self.heard.is_some_and(|heard| heard.elapsed() > STALE) {
            let inbox = self.line.inbox;
            self.say(|| sqlx::query(DROP_HEARD).bind(inbox)).await?;
            self.heard = None;
        }
        Ok(())
    }

    async fn close(self) {
        Endpoint::close(self.connection).await;
    }
}

impl Sleeper {
    /// Returns the locks that this process was told of, and when; after a while, an empty list.
    /// `None` if the sleep was broken off.
    async fn sleep(&mut self) -> Result<Option<Vec<(LockName, i64)>>, Failure> {
        let Self { connection, mark, gate, line, .. } = self;
        let sleeping = sqlx::query(LISTEN).bind(&*mark).bind(&*gate).bind(line.inbox);
        let rows = match within_limit(sleeping.fetch_all(connection)).await {
            Err(failure) if failure.is_interruption() => return Ok(None),
            Err(failure) if failure.is_conflict() => return Ok(Some(Vec::new())),
            rows => rows?,
        };
        let mut told = Vec::with_capacity(rows.len());
        for row in rows {
            if row.try_get::<i64, _>("is_here")? == 0 {
                return Err(Failure::Pooled);
            }
            // Others tell on the server that takes writes by now.
            if row.try_get("is_read_only")? {
                return Err(Failure::Demoted);
            }
            if let Some(at) = row.try_get("told")? {
                told.push((lock_of(&row)?, at));
                continue;
            }
            match row.try_get("is_through")? {
                Some(1_i64) => self.close_gate().await?,
                Some(_) => (),
                // MariaDB breaks off the wait, not the statement.
                None => return Ok(None),
            }
        }
        Ok(Some(told))
    }

    /// Notes that what was told of these locks has been heard. There are at most as many as fit
    /// into one statement.
    async fn note_heard(&mut self, told: &[(LockName, i64)]) -> Result<(), Failure> {
        let inbox = self.line.inbox;
        let (statement, places) = match told.len() {
            1 => (HEARD, 1),
            _ => (HEARD_TOGETHER, TOGETHER),
        };
        self.say(|| {
            // A lock may stand there more than once.
            told.iter().cycle().take(places).fold(sqlx::query(statement), |query, (name, at)| {
                let (namespace, lock) = (name.namespace().as_str(), name.as_str());
                query.bind(namespace.as_bytes()).bind(lock.as_bytes()).bind(inbox).bind(*at)
            })
        })
        .await?;
        self.heard = Some(Instant::now());
        Ok(())
    }

    /// Has another session of the driver keep the gate closed. That session may go away with its
    /// connection, however often: then this session gets through, and the gate is closed anew. It
    /// cannot get through while one of the same server keeps the gate closed.
    async fn close_gate(&mut self) -> Result<(), Failure> {
        let gate = self.gate.clone();
        self.say(|| sqlx::query(OPEN).bind(&*gate)).await?;
        let (closing, within) = (CloseGate(&gate), Limit::new(LIMIT));
        match self.line.connections.sequence(&closing, Urgency::Releases, within).await? {
            true => Ok(()),
            false => {
                let text = "requests are sent to another server than the one that is listened to";
                Err(Failure::found(ErrorKind::Unreachable, text))
            }
        }
    }

    /// Sends a statement, and sends it again if it was broken off by somebody who rings meanwhile.
    async fn say<'q>(&mut self, statement: impl Fn() -> Query<'q>) -> Result<(), Failure> {
        loop {
            match within_limit(statement().execute(&mut self.connection)).await {
                Err(failure) if is_to_be_repeated(&failure) => (),
                said => return said.map(drop),
            }
        }
    }
}

/// Closes the gate; the answer is whether it was open.
struct CloseGate<'a>(&'a str);

impl Steps for CloseGate<'_> {
    type Answer = bool;

    async fn take(&self, transaction: &mut Transaction<'_>) -> Result<bool, Failure> {
        let rows = transaction.read(CLOSE, &[self.0, self.0].map(Value::text)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>("is_closed_now")? == 1)
    }
}

type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

/// Whether somebody has rung, or was in the way.
fn is_to_be_repeated(failure: &Failure) -> bool {
    failure.is_interruption() || failure.is_conflict()
}

/// Waits for an answer, with a limit longer than a sleep or the wait for a row.
async fn within_limit<T>(
    asking: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    const LONGEST: Duration = Duration::from_secs(4);
    Ok(timeout(LONGEST, asking).await.map_err(|_| Failure::NoAnswer(LONGEST))??)
}

fn lock_of(row: &MySqlRow) -> Result<LockName, Failure> {
    let namespace = std::str::from_utf8(bytes_of(row, "namespace")?).ok();
    let namespace = namespace.and_then(|namespace| Namespace::new(namespace).ok());
    let none = || Failure::found(ErrorKind::Foreign, "a namespace in a row is none");
    name_of(&namespace.ok_or_else(none)?, row)
}
