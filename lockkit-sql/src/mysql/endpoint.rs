use std::fmt;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tokio::time::timeout;

use super::error::Failure;
use super::layout;
use crate::seats::{Source, say_goodbye};

const GREETING: &str = include_str!("sql/greeting.sql");

/// How long connecting may take, greeting included.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// Where the database is, and how to get in.
#[derive(Clone)]
pub(super) struct Endpoint {
    options: MySqlConnectOptions,
    /// The statements that will be sent most.
    requests: &'static [&'static str],
}

impl Endpoint {
    pub(super) fn new(options: MySqlConnectOptions, requests: &'static [&'static str]) -> Self {
        // The greeting sets what the client would set by itself.
        let options = options
            .disable_statement_logging()
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false);
        Self { options, requests }
    }

    /// The same, where other statements will be sent most.
    pub(super) fn with_requests(&self, requests: &'static [&'static str]) -> Self {
        Self { requests, ..self.clone() }
    }

    /// Opens the first connection, and makes the tables if there are none.
    pub(super) async fn found(&self) -> Result<MySqlConnection, Failure> {
        self.within_limit(async {
            let mut connection = self.greeted().await?;
            layout::prepare(&mut connection, layout::OF_LEASES).await?;
            self.prepare_requests(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    /// Opens a connection and makes sure that the other end takes writes.
    pub(super) async fn greeted(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await?;
        // All rows, so that nothing of the answer is left on the connection.
        let rows = connection.fetch_all(sqlx::raw_sql(GREETING)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        match row.try_get("is_read_only")? {
            true => Err(Failure::ReadOnly),
            false => Ok(connection),
        }
    }

    /// Makes each request one round trip, from the first on.
    async fn prepare_requests(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        for request in self.requests {
            connection.prepare(sqlx::SqlStr::from_static(request)).await?;
        }
        Ok(())
    }

    /// Makes sure that a session's locks bind all who use the database; then makes the tables if
    /// there are none.
    pub(super) async fn found_for_sessions(&self) -> Result<(), Failure> {
        const CLUSTER: &str = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";
        self.within_limit(async {
            let mut connection = self.greeted().await?;
            for variable in connection.fetch_all(sqlx::raw_sql(CLUSTER)).await? {
                if variable.try_get::<&str, _>("Value")? == "ON" {
                    return Err(Failure::Galera);
                }
            }
            layout::prepare(&mut connection, layout::OF_SESSIONS).await?;
            Self::close(connection).await;
            Ok(())
        })
        .await
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
    type Connection = MySqlConnection;
    type Failure = Failure;

    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        self.within_limit(async {
            let mut connection = self.greeted().await?;
            self.prepare_requests(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    async fn close(connection: MySqlConnection) {
        say_goodbye(connection).await;
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        match self.options.get_socket() {
            Some(socket) => write!(f, "{}", socket.display())?,
            None if host.contains(':') => write!(f, "[{host}]:{port}")?,
            None => write!(f, "{host}:{port}")?,
        }
        write!(f, "/{}", self.options.get_database().unwrap_or_default())
    }
}

/// Without the password, which the options would print.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
