use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::driver::ErrorKind;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgRow};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::Failure;
use super::layout;
use crate::seats::{Source, say_goodbye};

const GREETING: &str = include_str!("sql/greeting.sql");
/// Which [`Session`] answers.
pub(super) const SESSION: &str = "SELECT pg_backend_pid() AS pid, \
     current_setting('transaction_read_only') = 'on' AS is_read_only";
/// Locks nothing in a session other than the one that listens: there the lock would be left behind.
const LIVE: &str = "SELECT pg_advisory_lock_shared($1, $2)::text WHERE pg_backend_pid() = $3";

/// How long connecting may take, greeting included.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// Where the database is, and how to get in.
#[derive(Clone)]
pub(super) struct Endpoint {
    options: PgConnectOptions,
    /// The statements that will be sent most.
    requests: &'static [&'static str],
    /// Whether a new connection got a session that had been used before.
    is_pooled: Arc<AtomicBool>,
}

impl Endpoint {
    pub(super) fn new(options: PgConnectOptions, requests: &'static [&'static str]) -> Self {
        let options = options.disable_statement_logging();
        Self { options, requests, is_pooled: Arc::default() }
    }

    /// The same, where other statements will be sent most.
    pub(super) fn with_requests(&self, requests: &'static [&'static str]) -> Self {
        Self::new(self.options.clone(), requests)
    }

    /// Whether a pooler was found that gives each transaction another session.
    pub(super) fn is_pooled(&self) -> bool {
        self.is_pooled.load(Ordering::Relaxed)
    }

    /// Opens the first connection, and makes the tables if there are none. A later one may find a
    /// server that takes no writes for now: locks can be looked at there.
    pub(super) async fn found(&self) -> Result<PgConnection, Failure> {
        self.within_limit(async {
            let mut connection = self.options.connect().await?;
            self.greet(&mut connection).await?.that_writes()?;
            layout::prepare(&mut connection).await?;
            self.prepare_requests(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    /// Makes sure that no pooler gives sessions to whoever has a request, before anything is set in
    /// a session that others would meet; then makes the tables if there are none. What is opened here
    /// has nothing prepared: to a server that is far away, there are many round trips as it is.
    pub(super) async fn found_for_sessions(&self) -> Result<PgConnection, Failure> {
        self.within_limit(async {
            let (mut one, mut other) =
                tokio::try_join!(self.options.connect(), self.options.connect())?;
            let pid = self.greet(&mut one).await?.that_writes()?.pid;
            // A pooler gives the next request the session that it got back last.
            let is_shared = pid == self.greet(&mut other).await?.pid;
            if is_shared || self.is_pooled() || pid != session_of(&mut one).await?.pid {
                return Err(Failure::Pooled);
            }
            layout::prepare(&mut one).await?;
            Self::close(other).await;
            Ok(one)
        })
        .await
    }

    /// Opens a connection that listens, and says which session of the server that is. The
    /// connection keeps `sign_of_life`, if there is one, locked for as long as it lives.
    pub(super) async fn listen(
        &self,
        channel: &str,
        sign_of_life: Option<[i32; 2]>,
    ) -> Result<(PgListener, i32), Failure> {
        self.within_limit(async {
            // The connection is greeted before there is a listener: a listener that is dropped says
            // goodbye in a task that waits for the answer without a limit, and keeps the connection
            // until then.
            let (greets, mut greeted) = mpsc::unbounded_channel();
            let endpoint = self.clone();
            // The listener takes its connection from a pool; this pool makes no second one.
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .acquire_timeout(CONNECT_LIMIT)
                // It would warn as if a pool of the application's were short of connections.
                .acquire_slow_threshold(CONNECT_LIMIT)
                .after_connect(move |connection, _| {
                    let (endpoint, greets) = (endpoint.clone(), greets.clone());
                    Box::pin(async move {
                        let greeting = endpoint.greet_to_listen(connection).await;
                        let is_fit = greeting.is_ok();
                        // If this fails, whoever asked has gone, and drops this soon.
                        _ = greets.send(greeting);
                        match is_fit {
                            true => Ok(()),
                            // The pool would log an error and try again: it is dropped instead.
                            false => std::future::pending().await,
                        }
                    })
                })
                .connect_lazy_with(self.options.clone());
            let greeting = async { greeted.recv().await.unwrap_or(Err(Failure::Broken)) };
            let connecting = async { Ok(PgListener::connect_with(&pool).await?) };
            let (session, mut listener) = tokio::try_join!(greeting, connecting)?;
            listener.eager_reconnect(false);
            listener.listen(channel).await?;
            if let Some([high, low]) = sign_of_life {
                // By the time others see this locked, the channel is listened to.
                let locking = sqlx::query(LIVE).persistent(false).bind(high).bind(low);
                if locking.bind(session).fetch_all(&mut listener).await?.is_empty() {
                    return Err(Failure::Pooled);
                }
            }
            Ok((listener, session))
        })
        .await
    }

    async fn greeted(&self) -> Result<PgConnection, Failure> {
        let mut connection = self.options.connect().await?;
        self.greet(&mut connection).await?;
        Ok(connection)
    }

    /// Makes sure that the other end is fit, and says what session it is.
    async fn greet<'c>(
        &self,
        executor: impl sqlx::Executor<'c, Database = sqlx::Postgres>,
    ) -> Result<Session, Failure> {
        let row = one_row(executor, GREETING).await?;
        if row.try_get("is_standby")? {
            return Err(Failure::Standby);
        }
        let encoding: &str = row.try_get("encoding")?;
        if encoding != "UTF8" {
            return Err(Failure::found(
                ErrorKind::Misconfigured,
                format!("the database has the encoding {encoding}; names of locks need UTF8"),
            ));
        }
        if row.try_get("is_shared")? {
            self.is_pooled.store(true, Ordering::Relaxed);
        }
        Session::of(&row)
    }

    /// The same for a connection that is to listen, which needs a session of its own, where locks
    /// are let go.
    async fn greet_to_listen(&self, connection: &mut PgConnection) -> Result<i32, Failure> {
        match self.greet(connection).await? {
            _ if self.is_pooled() => Err(Failure::Pooled),
            Session { is_read_only: true, .. } => Err(Failure::Demoted),
            Session { pid, .. } => Ok(pid),
        }
    }

    /// Makes each request one round trip, from the first on.
    async fn prepare_requests(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        for request in self.requests {
            connection.prepare(sqlx::SqlStr::from_static(request)).await?;
        }
        Ok(())
    }

    pub(super) async fn within_limit<T>(
        &self,
        connecting: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let late = Failure::NoConnection { limit: CONNECT_LIMIT, last: None };
        timeout(CONNECT_LIMIT, connecting).await.unwrap_or(Err(late))
    }
}

impl Source for Endpoint {
    type Connection = PgConnection;
    type Failure = Failure;

    async fn connect(&self) -> Result<PgConnection, Failure> {
        self.within_limit(async {
            let mut connection = self.greeted().await?;
            self.prepare_requests(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    async fn close(connection: PgConnection) {
        say_goodbye(connection).await;
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.options.get_host();
        match host.contains(':') {
            true => write!(f, "[{host}]")?,
            false => f.write_str(host)?,
        }
        write!(f, ":{}", self.options.get_port())?;
        // If no database is named, the server takes the one with the user's name.
        write!(f, "/{}", self.options.get_database().unwrap_or(self.options.get_username()))
    }
}

/// Without the password, which the options would print.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// A session of the server.
pub(super) struct Session {
    pub(super) pid: i32,
    /// Whether its transactions may write nothing.
    pub(super) is_read_only: bool,
}

impl Session {
    pub(super) fn of(row: &PgRow) -> Result<Self, Failure> {
        Ok(Self { pid: row.try_get("pid")?, is_read_only: row.try_get("is_read_only")? })
    }

    fn that_writes(self) -> Result<Self, Failure> {
        match self.is_read_only {
            true => Err(Failure::ReadOnly),
            false => Ok(self),
        }
    }
}

/// Which session of the server answers.
pub(super) async fn session_of<'c>(
    executor: impl sqlx::Executor<'c, Database = sqlx::Postgres>,
) -> Result<Session, Failure> {
    Session::of(&one_row(executor, SESSION).await?)
}

/// Sends a statement by itself, without preparing it: that works through every pooler.
async fn one_row<'c>(
    executor: impl sqlx::Executor<'c, Database = sqlx::Postgres>,
    statement: &'static str,
) -> Result<PgRow, sqlx::Error> {
    // All rows, so that nothing of the answer is left on the connection.
    let rows = executor.fetch_all(sqlx::raw_sql(statement)).await?;
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}
