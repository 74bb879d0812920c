use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, OwnerId, Taken,
};
use lockkit_core::{FencingToken, LockName, Namespace};
use lockkit_sql::postgres::PostgresDriver;
use sqlx::postgres::{PgArguments, PgConnection, Postgres};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::sweeps::draw_no_sweep;

pub(crate) const NAME: &str = "orders/{42} ü";

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A database of one's own, and a plain client to look and to tamper.
pub(crate) struct Database {
    pub(crate) url: String,
    raw: PgConnection,
}

impl Database {
    /// On the server that this is the URL of.
    pub(crate) async fn on(server: &str) -> Self {
        Self::made_with(server, "").await
    }

    /// The one that this is the URL of.
    pub(crate) async fn at(url: &str) -> Self {
        Self { raw: PgConnection::connect(url).await.unwrap(), url: url.into() }
    }

    /// With something more to say when it is made.
    pub(crate) async fn made_with(server: &str, how: &str) -> Self {
        let mut raw = PgConnection::connect(server).await.unwrap();
        let name = format!("lockkit_{}", OwnerId::random());
        let statement = format!("CREATE DATABASE {name} TEMPLATE template0 {how}");
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut raw).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self::at(&url).await
    }

    pub(crate) fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }

    /// The URL for another role.
    pub(crate) fn url_of(&self, user: &str) -> String {
        self.url.replace("postgres://postgres@", &format!("postgres://{user}@"))
    }

    pub(crate) async fn driver(&self) -> PostgresDriver {
        driver(&self.url).await
    }

    /// Carries out statements.
    pub(crate) async fn run(&mut self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut self.raw).await.unwrap();
    }

    /// The one value that a query yields.
    pub(crate) async fn ask<T>(&mut self, query: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
    {
        let query: sqlx::query::Query<'_, Postgres, PgArguments> =
            sqlx::query(AssertSqlSafe(query));
        query.persistent(false).fetch_one(&mut self.raw).await.unwrap().get(0)
    }

    /// How many sessions of the driver there are in this database.
    pub(crate) async fn sessions(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'lockkit'",
        )
        .await
    }

    /// Waits until somebody waits for what this client has locked.
    pub(crate) async fn blocks_somebody(&mut self) {
        let waits = "SELECT count(*) FROM pg_stat_activity \
                     WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
        while self.ask::<i64>(waits).await == 0 {
            tokio::time::sleep(millis(5)).await;
        }
    }

    /// How many sessions in this database show that they listen.
    pub(crate) async fn listeners(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .await
    }

    /// Waits until as many do.
    pub(crate) async fn listeners_fall_to(&mut self, number: i64) {
        while self.listeners().await > number {
            tokio::time::sleep(millis(5)).await;
        }
    }

    /// Ends the sessions of drivers in this database, and waits until they are gone.
    pub(crate) async fn end_sessions(&mut self) {
        self.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'lockkit'",
        )
        .await;
    }

    /// Waits until as many are left.
    pub(crate) async fn sessions_fall_to(&mut self, number: i64) {
        while self.sessions().await > number {
            tokio::time::sleep(millis(5)).await;
        }
    }
}

/// With a limit to calls that a machine under load keeps, also for short leases.
pub(crate) async fn driver(url: &str) -> PostgresDriver {
    let mark = if url.contains('?') { '&' } else { '?' };
    impatient_driver(&format!("{url}{mark}call_limit=10s")).await
}

/// With limits to calls that follow from the lease.
pub(crate) async fn impatient_driver(url: &str) -> PostgresDriver {
    draw_no_sweep();
    PostgresDriver::connect(&url.parse().unwrap()).await.unwrap()
}

pub(crate) fn claim(ttl: Duration) -> Claim {
    named(NAME, ttl)
}

pub(crate) fn named(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), name).unwrap(), ttl)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn take(driver: &PostgresDriver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn refused(driver: &PostgresDriver, claim: &Claim) -> Taken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(taken) => taken,
        other => panic!("not refused: {other:?}"),
    }
}

/// Asks until the claim's subscription stands. For the first who waits; who comes later is not
/// told to ask again.
pub(crate) async fn listen(driver: &PostgresDriver, claim: &Claim) {
    refused(driver, claim).await;
    assert_eq!(driver.changed(claim).await, Change::AskAgain);
    refused(driver, claim).await;
}

/// The kind of the error, and a text with all causes.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, DriverError>) -> (ErrorKind, String) {
    let error = result.unwrap_err();
    let kind = error.kind();
    (kind, causes(&*error.into_source()))
}

pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| format!("{error}; ")).collect()
}
