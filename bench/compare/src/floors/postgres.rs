use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_bench::Result;
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;

use super::{NAMESPACE, TTL, owner, prepare};
use crate::agent::{Client, Library, let_go_after};

/// Leases as rows.
pub(super) struct Rows {
    url: String,
}

/// One connection.
pub(super) struct OfRows {
    url: String,
    connection: Mutex<PgConnection>,
}

impl Rows {
    pub(super) async fn at(url: String) -> Result<Self> {
        prepare(&url).await?;
        Ok(Self { url })
    }
}

impl Library for Rows {
    type Client = OfRows;

    async fn connect(&self) -> Result<OfRows> {
        let connection = Mutex::new(PgConnection::connect(&self.url).await?);
        Ok(OfRows { url: self.url.clone(), connection })
    }
}

impl OfRows {
    /// Leaves a place if there is an inbox to be told in: in order, so that nobody looks whether somebody
    /// listens.
    async fn take(&self, name: &str, owner: &str, label: &str, inbox: Option<&str>) -> Result<()> {
        sqlx::query(include_str!("../../../../lockkit-sql/src/postgres/sql/take.sql"))
            .bind(NAMESPACE)
            .bind(name)
            .bind(owner)
            .bind(label)
            .bind(i64::try_from(TTL.as_micros())?)
            .bind(inbox)
            .bind(inbox.is_some())
            .bind(false)
            .bind(0_i64)
            .bind(0_i64)
            .bind(2_250)
            .fetch_all(&mut *self.connection.lock().await)
            .await?;
        Ok(())
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
        self.take(name, &owner, &label, None).await?;
        Ok(owner)
    }

    async fn release(&self, name: &String, owner: String) -> Result<()> {
        sqlx::query("SELECT lockkit_release($1, $2, $3, $4, $5) AS was_held")
            .bind(NAMESPACE)
            .bind(name)
            .bind(owner)
            .bind(false)
            .bind(2_250)
            .fetch_all(&mut *self.connection.lock().await)
            .await?;
        Ok(())
    }

    /// A release of what somebody has asked for in vain, and the news of it.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let name = name.to_owned();
        let mut news = PgListener::connect(&to.url).await?;
        let inbox = format!("floor_{}", owner().0);
        news.listen(&inbox).await?;
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            let hold = self.acquire(&name).await?;
            let (waiter, label) = owner();
            to.take(&name, &waiter, &label, Some(&inbox)).await?;
            let waiting = tokio::spawn(async move {
                let message = news.recv().await;
                (message, Instant::now(), news)
            });
            let start = let_go_after(*delay, || self.release(&name, hold)).await?;
            let (message, heard, returned) = waiting.await?;
            message?;
            news = returned;
            to.release(&name, waiter).await?;
            times.push(heard.saturating_duration_since(start));
        }
        Ok(Some(times))
    }
}

/// Locks that a session holds.
pub(super) struct Sessions {
    url: String,
}

/// One session.
pub(super) struct OfSessions(Arc<Mutex<PgConnection>>);

const TAKE: &str = "SELECT is_granted, last_token, ask_again \
     FROM lockkit_session_take($1, $2, $3, $4, $5, $6, $7)";
/// The same, once the lock is free.
const WAIT: &str = "SELECT taken.is_granted, taken.last_token, taken.ask_again, \
            pg_advisory_unlock(waited.key) AS was_locked_twice \
     FROM (SELECT $1::bigint AS key, pg_advisory_lock($1) OFFSET 0) AS waited, \
          LATERAL lockkit_session_take(waited.key, $2, $3, $4, $5, $6, $7) AS taken";

impl Sessions {
    pub(super) async fn at(url: String) -> Result<Self> {
        prepare(&format!("{url}?hold=session")).await?;
        Ok(Self { url })
    }
}

impl Library for Sessions {
    type Client = OfSessions;

    async fn connect(&self) -> Result<OfSessions> {
        let connection = PgConnection::connect(&self.url).await?;
        Ok(OfSessions(Arc::new(Mutex::new(connection))))
    }
}

async fn take(connection: &mut PgConnection, statement: &'static str, name: &str) -> Result<()> {
    let (owner, label) = owner();
    sqlx::query(statement)
        .bind(key(name))
        .bind(NAMESPACE)
        .bind(name)
        .bind(owner)
        .bind(label)
        .bind(i64::try_from(TTL.as_micros())?)
        .bind(false)
        .fetch_all(connection)
        .await?;
    Ok(())
}

impl Client for OfSessions {
    type Lock = String;
    type Hold = ();

    fn lock(&self, name: &str) -> Result<String> {
        Ok(name.into())
    }

    async fn acquire(&self, name: &String) -> Result<()> {
        take(&mut *self.0.lock().await, TAKE, name).await
    }

    async fn release(&self, name: &String, (): ()) -> Result<()> {
        sqlx::query("SELECT lockkit_session_release($1) AS was_held")
            .bind(key(name))
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
        let name = name.to_owned();
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            self.acquire(&name).await?;
            let (mut session, awaited) = (to.0.clone().lock_owned().await, name.clone());
            let waiting = tokio::spawn(async move {
                let answer = take(&mut session, WAIT, &awaited).await;
                (answer, Instant::now())
            });
            let start = let_go_after(*delay, || self.release(&name, ())).await?;
            let (answer, granted) = waiting.await?;
            answer?;
            times.push(granted.saturating_duration_since(start));
            to.release(&name, ()).await?;
        }
        Ok(Some(times))
    }
}

/// The number of an advisory lock.
fn key(name: &str) -> i64 {
    name.bytes().fold(4711, |key, byte| key * 31 % 1_000_000_007 + i64::from(byte))
}
