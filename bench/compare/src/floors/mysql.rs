use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_bench::Result;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Connection as _, MySqlConnection};
use tokio::sync::Mutex;

use super::{NAMESPACE, TTL, owner, prepare};
use crate::agent::{Client, Library, let_go_after};

/// Leases as rows.
pub(super) struct Rows {
    url: String,
}

/// Locks that a session holds.
pub(super) struct Sessions {
    url: String,
}

/// One connection, and another one where nothing of the first is to be waited for.
pub(super) struct OfRows {
    connection: Session,
    beside: Session,
}

/// One session.
pub(super) struct OfSessions(Session);

type Session = Arc<Mutex<MySqlConnection>>;

/// The scheme of their own is not known to the client library.
async fn connect(url: &str) -> Result<Session> {
    let connection = MySqlConnection::connect(&url.replacen("mariadb", "mysql", 1)).await?;
    Ok(Arc::new(Mutex::new(connection)))
}

impl Rows {
    pub(super) async fn at(url: String) -> Result<Self> {
        prepare(&url).await?;
        Ok(Self { url })
    }
}

impl Sessions {
    pub(super) async fn at(url: String) -> Result<Self> {
        prepare(&format!("{url}?hold=session")).await?;
        Ok(Self { url })
    }
}

impl Library for Rows {
    type Client = OfRows;

    async fn connect(&self) -> Result<OfRows> {
        Ok(OfRows { connection: connect(&self.url).await?, beside: connect(&self.url).await? })
    }
}

impl Library for Sessions {
    type Client = OfSessions;

    async fn connect(&self) -> Result<OfSessions> {
        Ok(OfSessions(connect(&self.url).await?))
    }
}

impl Client for OfRows {
    type Lock = String;
    type Hold = String;

    fn lock(&self, name: &str) -> Result<String> {
        Ok(name.into())
    }

    async fn acquire(&self, name: &String) -> Result<String> {
        let (owner, label) = owner();
        let ttl = i64::try_from(TTL.as_micros())?;
        sqlx::query(include_str!("../../../../lockkit-sql/src/mysql/sql/take.sql"))
            .bind(NAMESPACE.as_bytes())
            .bind(name.as_bytes())
            .bind(owner.as_bytes())
            .bind(label.as_bytes())
            .bind(ttl)
            .bind(owner.as_bytes())
            .bind(owner.as_bytes())
            .bind(0_i64)
            .bind(0_i64)
            .bind(0_i64)
            .bind(owner.as_bytes())
            .bind(label.as_bytes())
            .bind(ttl)
            .bind(ttl)
            .bind(ttl)
            .bind(0_i64)
            .bind(0_i64)
            .execute(&mut *self.connection.lock().await)
            .await?;
        Ok(owner)
    }

    async fn release(&self, name: &String, owner: String) -> Result<()> {
        sqlx::query(include_str!("../../../../lockkit-sql/src/mysql/sql/release.sql"))
            .bind(NAMESPACE.as_bytes())
            .bind(name.as_bytes())
            .bind(owner.as_bytes())
            .execute(&mut *self.connection.lock().await)
            .await?;
        Ok(())
    }

    /// A release, and the end of the statement by which another session waits.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let name = name.to_owned();
        let gate = format!("floor {name}");
        sqlx::query(WAIT).bind(&gate).execute(&mut *self.beside.lock().await).await?;
        let whom = sqlx::query_scalar::<_, u64>("SELECT CONNECTION_ID()");
        let whom = whom.fetch_one(&mut *to.beside.lock().await).await?;
        let set = sqlx::query("SET @floor = ?").bind(whom);
        set.execute(&mut *self.connection.lock().await).await?;
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            let owner = self.acquire(&name).await?;
            let (mut session, gate) = (to.beside.clone().lock_owned().await, gate.clone());
            let waiting = tokio::spawn(async move {
                let ended = sqlx::query_scalar::<_, Option<i64>>(WAIT).bind(gate);
                (ended.fetch_one(&mut *session).await, Instant::now())
            });
            let start = let_go_after(*delay, || async {
                self.release(&name, owner).await?;
                sqlx::raw_sql("KILL QUERY @floor")
                    .execute(&mut *self.connection.lock().await)
                    .await?;
                Ok(())
            });
            let start = start.await?;
            let (ended, told) = waiting.await?;
            match ended {
                // Interrupted, which servers say in either way.
                Ok(None) => (),
                Err(error) if is_interruption(&error) => (),
                Ok(Some(answer)) => return Err(format!("the wait ended with {answer}").into()),
                Err(error) => return Err(error.into()),
            }
            times.push(told.saturating_duration_since(start));
        }
        Ok(Some(times))
    }
}

/// For a lock that is never let go, until somebody ends the wait.
const WAIT: &str = "SELECT GET_LOCK(?, 10)";

fn is_interruption(error: &sqlx::Error) -> bool {
    const INTERRUPTED: u16 = 1317;
    let error =
        error.as_database_error().and_then(|it| it.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == INTERRUPTED)
}

const TAKE: &str = include_str!("../../../../lockkit-sql/src/mysql/sql/session_take.sql");
const KEEP: &str = include_str!("../../../../lockkit-sql/src/mysql/sql/session_keep.sql");

/// What a session calls itself, in as many characters as the driver's.
const SESSION: &str = "0123456789abcdef0123456789abcdef";

/// A lock, and what the server knows it by.
pub(super) struct Keyed {
    name: String,
    key: String,
}

impl Keyed {
    /// The driver's key, a hash, has as many characters.
    fn new(name: &str) -> Self {
        Self { name: name.into(), key: format!("{name:0>64}") }
    }
}

async fn take(
    connection: &mut MySqlConnection,
    statement: &'static str,
    Keyed { name, key }: &Keyed,
) -> Result<()> {
    let (owner, label) = owner();
    let of_hold = [NAMESPACE, name, &owner, &label, SESSION];
    let values = [&**key].into_iter().chain(of_hold).chain([&**key]).chain(of_hold);
    let take = values.fold(sqlx::query(statement), |take, value| take.bind(value.as_bytes()));
    take.execute(connection).await?;
    Ok(())
}

async fn wait(connection: &mut MySqlConnection, lock: &Keyed) -> Result<()> {
    sqlx::query("SELECT COALESCE(GET_LOCK(?, ?), 0) AS is_ours")
        .bind(&lock.key)
        .bind(10_u64)
        .fetch_all(&mut *connection)
        .await?;
    take(connection, KEEP, lock).await
}

impl Client for OfSessions {
    type Lock = Keyed;
    type Hold = ();

    fn lock(&self, name: &str) -> Result<Keyed> {
        Ok(Keyed::new(name))
    }

    async fn acquire(&self, lock: &Keyed) -> Result<()> {
        take(&mut *self.0.lock().await, TAKE, lock).await
    }

    async fn release(&self, lock: &Keyed, (): ()) -> Result<()> {
        sqlx::query("SELECT COALESCE(RELEASE_LOCK(?), 0) AS was_held")
            .bind(&lock.key)
            .fetch_all(&mut *self.0.lock().await)
            .await?;
        Ok(())
    }

    /// A release, and the end of another session's wait.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let lock = Keyed::new(name);
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            self.acquire(&lock).await?;
            let (mut session, awaited) = (to.0.clone().lock_owned().await, Keyed::new(name));
            let waiting = tokio::spawn(async move {
                let answer = wait(&mut session, &awaited).await;
                (answer, Instant::now())
            });
            let start = let_go_after(*delay, || self.release(&lock, ())).await?;
            let (answer, granted) = waiting.await?;
            answer?;
            times.push(granted.saturating_duration_since(start));
            to.release(&lock, ()).await?;
        }
        Ok(Some(times))
    }
}
