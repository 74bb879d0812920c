use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::OwnerId;
use lockkit_core::{FencingToken, LockName, Namespace, Wait};
use lockkit_sql::transaction::postgres::xact_lock;
use lockkit_sql::transaction::{self, Database, Error, RowLocks, row_lock};
use lockkit_testkit::{MARIADB, POSTGRES, Proxy, Unavailable, trial};
use sqlx::pool::PoolOptions;
use sqlx::{
    AssertSqlSafe, Connection as _, MySql, MySqlConnection, PgConnection, Pool, Postgres, Row as _,
    Sqlite, SqliteConnection, Transaction,
};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// More than any test needs.
pub(crate) const ATTEMPTS: u32 = 1_000;

/// Where a test's database is to be.
#[derive(Clone)]
pub(crate) enum Home {
    Server(String),
    Folder(Arc<TempDir>),
}

/// A database of one's own, with the tables of lockkit and a stock of 1000.
pub(crate) struct Shop<DB: Database> {
    /// Kept for as long as the database is used.
    _home: Home,
    pub(crate) url: String,
    /// To look.
    raw: DB::Connection,
}

impl<DB: Tested> Shop<DB> {
    pub(crate) async fn at(home: Home) -> Self {
        let mut shop = Self::empty(home).await;
        transaction::create_tables::<DB::Connection>(&mut shop.raw).await.unwrap();
        shop.execute("CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT, version BIGINT)")
            .await;
        shop.execute("INSERT INTO stock VALUES (1, 1000, 0), (2, 1000, 0)").await;
        shop
    }

    /// Without tables.
    pub(crate) async fn empty(home: Home) -> Self {
        let name = format!("lockkit_{}", OwnerId::random());
        let url = match &home {
            Home::Server(server) => {
                let mut first = DB::connect(server).await;
                DB::execute(&mut first, &format!("CREATE DATABASE {name}")).await.unwrap();
                format!("{}/{name}", server.rsplit_once('/').unwrap().0)
            }
            Home::Folder(folder) => {
                format!("sqlite:{}/{name}.db?mode=rwc", folder.path().display())
            }
        };
        let raw = DB::connect(&url).await;
        Self { _home: home, url, raw }
    }

    pub(crate) async fn pool(&self, connections: u32) -> Pool<DB> {
        let options = PoolOptions::new().max_connections(connections);
        options.connect(&self.url).await.unwrap()
    }

    /// One connection, whose answers take long enough to be waited for.
    pub(crate) async fn slow_pool(&self) -> (Pool<DB>, Option<Proxy>) {
        let Some((before, rest)) = self.url.split_once("@127.0.0.1:") else {
            return (self.pool(1).await, None);
        };
        let (port, database) = rest.split_once('/').unwrap();
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))).await;
        proxy.answers().delay(millis(2));
        let url = format!("{before}@{}/{database}", proxy.addr());
        let options = PoolOptions::new().max_connections(1);
        (options.connect(&url).await.unwrap(), Some(proxy))
    }

    /// A connection whose transactions have that isolation level.
    pub(crate) async fn pool_at(&self, connections: u32, level: &'static str) -> Pool<DB> {
        let options = PoolOptions::<DB>::new().max_connections(connections);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move { DB::execute(connection, level).await.map(|_| ()) })
        });
        options.connect(&self.url).await.unwrap()
    }

    pub(crate) async fn execute(&mut self, sql: &str) -> u64 {
        DB::execute(&mut self.raw, sql).await.unwrap()
    }

    pub(crate) async fn ask(&mut self, sql: &str) -> i64 {
        DB::ask(&mut self.raw, sql).await.unwrap()
    }

    pub(crate) async fn pieces(&mut self) -> i64 {
        self.ask("SELECT pieces FROM stock WHERE id = 1").await
    }

    /// How many transactions of this database wait for a lock.
    pub(crate) async fn waiters(&mut self) -> i64 {
        self.count(DB::WAITERS).await
    }

    pub(crate) async fn waiters_are(&mut self, number: i64) {
        while self.waiters().await != number {
            tokio::time::sleep(millis(2)).await;
        }
    }

    /// Waits until nobody has a transaction open.
    pub(crate) async fn is_quiet(&mut self) {
        while self.count(DB::OPEN).await > 0 {}
    }

    /// How many transactions that is at some time from now on.
    async fn count(&mut self, sql: &str) -> i64 {
        if DB::ID != "mariadb" {
            return self.ask(sql).await;
        }
        // The server looks at its transactions only where nobody has asked for 0.1 s, and answers
        // all who ask sooner from what it saw. So there is one look for whoever waits for one.
        static LOOK: Mutex<Option<Look>> = Mutex::const_new(None);
        let called = Instant::now();
        let mut look = LOOK.lock().await;
        let taken = match *look {
            Some(look) if look.taken > called => look.taken,
            before => {
                sleep_until(before.map_or(called, |look| look.used) + millis(110)).await;
                Instant::now()
            }
        };
        let number = self.ask(sql).await;
        *look = Some(Look { taken, used: Instant::now() });
        number
    }
}

/// What MariaDB saw of all transactions.
#[derive(Clone, Copy)]
struct Look {
    /// When it looked, at the earliest.
    taken: Instant,
    /// When somebody was told of it last.
    used: Instant,
}

/// A database that the tests are run on.
pub(crate) trait Tested: Database {
    const ID: &'static str;
    /// How many transactions wait for a lock.
    const WAITERS: &'static str;
    /// How many transactions are open, beside the one that asks, or have locks.
    const OPEN: &'static str;
    /// What sets the isolation level of a session.
    const LEVELS: &'static [&'static str];

    fn find() -> Result<Home, Unavailable>;

    fn connect(url: &str) -> impl Future<Output = Self::Connection> + Send;

    fn execute(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    fn ask(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;
}

macro_rules! requests {
    ($connection:ty) => {
        async fn connect(url: &str) -> $connection {
            <$connection>::connect(url).await.unwrap()
        }

        async fn execute(connection: &mut $connection, sql: &str) -> sqlx::Result<u64> {
            let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
            Ok(done.rows_affected())
        }

        async fn ask(connection: &mut $connection, sql: &str) -> sqlx::Result<i64> {
            sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?.try_get(0)
        }
    };
}

impl Tested for Postgres {
    const ID: &'static str = "postgres";
    const WAITERS: &'static str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    const OPEN: &'static str = "SELECT count(*) FROM pg_stat_activity AS a \
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state <> 'idle' \
           OR EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid))";
    const LEVELS: &'static [&'static str] = &[
        "SET default_transaction_isolation = 'read committed'",
        "SET default_transaction_isolation = 'repeatable read'",
        "SET default_transaction_isolation = 'serializable'",
    ];

    fn find() -> Result<Home, Unavailable> {
        POSTGRES.url().map(Home::Server)
    }

    requests!(PgConnection);
}

impl Tested for MySql {
    const ID: &'static str = "mariadb";
    const WAITERS: &'static str = "SELECT count(*) FROM information_schema.innodb_trx AS t \
        JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id \
        WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'";
    const OPEN: &'static str = "SELECT count(*) FROM information_schema.innodb_trx AS t \
        JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id \
        WHERE p.db = database()";
    const LEVELS: &'static [&'static str] = &[
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ];

    fn find() -> Result<Home, Unavailable> {
        MARIADB.url().map(Home::Server)
    }

    requests!(MySqlConnection);
}

impl Tested for Sqlite {
    const ID: &'static str = "sqlite";
    const WAITERS: &'static str = "SELECT 0";
    /// A writer would be in the way.
    const OPEN: &'static str = "SELECT 0";
    const LEVELS: &'static [&'static str] = &["SELECT 'serializable'"];

    fn find() -> Result<Home, Unavailable> {
        Ok(Home::Folder(Arc::new(tempfile::tempdir().unwrap())))
    }

    requests!(SqliteConnection);
}

/// A lock that a transaction can take.
pub(crate) trait Way<DB: Database>: Send + Sync + 'static {
    const ID: &'static str;

    fn lock(
        transaction: &mut Transaction<'_, DB>,
        name: &LockName,
        wait: Wait,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

pub(crate) struct Row;

impl<DB: RowLocks> Way<DB> for Row {
    const ID: &'static str = "row";

    async fn lock(
        transaction: &mut Transaction<'_, DB>,
        name: &LockName,
        wait: Wait,
    ) -> Result<(), Error> {
        row_lock(transaction, name, wait).await
    }
}

pub(crate) struct Xact;

impl Way<Postgres> for Xact {
    const ID: &'static str = "xact";

    async fn lock(
        transaction: &mut Transaction<'_, Postgres>,
        name: &LockName,
        wait: Wait,
    ) -> Result<(), Error> {
        xact_lock(transaction, name, wait).await
    }
}

/// A test of one database.
pub(crate) fn on<DB: Tested, F>(name: &str, test: impl FnOnce(Home) -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    trial(&format!("{}::{name}", DB::ID), DB::find, test)
}

/// A test of one lock of one database.
pub(crate) fn with<DB: Tested, W: Way<DB>, F>(
    name: &str,
    test: impl FnOnce(Home) -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = ()>,
{
    on::<DB, F>(&format!("{}::{name}", W::ID), test)
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(&Namespace::default(), text).unwrap()
}

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the future yields if it does so within that many polls; dropped after the last one.
pub(crate) async fn polled<F: Future>(future: F, mut polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        polls -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    chain.map(|error| format!("{error}; ")).collect()
}
