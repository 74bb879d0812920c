use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, OwnerId, Taken,
};
use lockkit_core::{FencingToken, LockName, Namespace};
use lockkit_sql::mysql::MysqlDriver;
pub(crate) use lockkit_testkit::mariadb_or_mysql as backend;
use lockkit_testkit::{Server, Unavailable};
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};
use tokio::sync::Mutex;

use crate::sweeps::draw_no_sweep;

pub(crate) const NAME: &str = "orders/{42} ü";

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// What time it is, in SQL.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// How many statements the server was sent.
pub(crate) const CARRIED_OUT: &str = "Questions";

/// For so long after somebody has looked the server tells of transactions as it did before.
const STALE: Duration = Duration::from_millis(120);

/// Two who look by turns would see nothing new for ever.
static LOOKS: Mutex<()> = Mutex::const_new(());

/// The URL of a server that tests share.
pub(crate) fn shared() -> Result<String, Unavailable> {
    backend().url()
}

/// A server for one test alone.
pub(crate) fn private() -> Result<Server, Unavailable> {
    backend().start()
}

/// The same without durability, for a test that writes many times.
pub(crate) fn without_durability() -> Result<Server, Unavailable> {
    backend().start_with(&["--innodb-flush-log-at-trx-commit=0"])
}

/// A database of one's own, and a plain client to look and to tamper.
pub(crate) struct Database {
    pub(crate) url: String,
    raw: MySqlConnection,
}

impl Database {
    /// On the server that this is the URL of.
    pub(crate) async fn on(server: &str) -> Self {
        let mut raw = MySqlConnection::connect(server).await.unwrap();
        let name = format!("lockkit_{}", OwnerId::random());
        raw.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        Self::at(&format!("{}/{name}", server.rsplit_once('/').unwrap().0)).await
    }

    /// The one that this is the URL of.
    pub(crate) async fn at(url: &str) -> Self {
        Self { raw: MySqlConnection::connect(url).await.unwrap(), url: url.into() }
    }

    pub(crate) fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }

    /// The URL for another user.
    pub(crate) fn url_of(&self, user: &str) -> String {
        self.url.replace("://root@", &format!("://{user}@"))
    }

    pub(crate) async fn driver(&self) -> MysqlDriver {
        driver(&self.url).await
    }

    /// Carries out statements.
    pub(crate) async fn run(&mut self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut self.raw).await.unwrap();
    }

    /// The one value that a query yields.
    pub(crate) async fn ask<T>(&mut self, query: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, MySql> + sqlx::Type<MySql> + Send + Unpin,
    {
        let query: sqlx::query::Query<'_, MySql, MySqlArguments> =
            sqlx::query(AssertSqlSafe(query));
        query.persistent(false).fetch_one(&mut self.raw).await.unwrap().get(0)
    }

    /// A figure of the server's.
    pub(crate) async fn figure(&mut self, name: &str) -> i64 {
        let show = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        let row = sqlx::raw_sql(AssertSqlSafe(show)).fetch_one(&mut self.raw).await.unwrap();
        row.get::<String, _>(1).parse().unwrap()
    }

    /// The one text that a query yields.
    pub(crate) async fn text(&mut self, query: &str) -> String {
        let bytes: Vec<u8> = self.ask(query).await;
        String::from_utf8(bytes).unwrap()
    }

    /// The ids of the sessions in this database, but for this client's.
    pub(crate) async fn sessions(&mut self) -> Vec<u64> {
        // Nothing is prepared for this.
        let own = self.raw.fetch_one("SELECT CONNECTION_ID()").await.unwrap();
        let (own, name) = (own.get::<u64, _>(0), self.name().to_owned());
        let rows = self.raw.fetch_all("SHOW PROCESSLIST").await.unwrap();
        rows.iter()
            .filter(|row| row.get::<Option<String>, _>("db").as_ref() == Some(&name))
            .map(|row| {
                row.try_get("Id").unwrap_or_else(|_| row.get::<i64, _>("Id").cast_unsigned())
            })
            .filter(|id| *id != own)
            .collect()
    }

    /// Ends the sessions of everybody else in this database, and waits until they are gone.
    pub(crate) async fn kill_sessions(&mut self) {
        let killed = self.sessions().await;
        for id in &killed {
            // It may have ended by itself.
            _ = self.raw.execute(AssertSqlSafe(format!("KILL {id}"))).await;
        }
        while self.sessions().await.iter().any(|id| killed.contains(id)) {
            tokio::time::sleep(millis(5)).await;
        }
    }

    /// Ends the session in which a renewal waits for a row, once there is one that has not ended
    /// before; returns its id.
    pub(crate) async fn end_renewal(&mut self, before: &[i64]) -> i64 {
        let before: String = before.iter().map(|id| format!(",{id}")).collect();
        let renewing = format!(
            "SELECT CAST(COALESCE(MAX(id), 0) AS SIGNED) FROM information_schema.processlist \
             WHERE db = DATABASE() AND info LIKE '%UPDATE lockkit_lock%' \
             AND id NOT IN (CONNECTION_ID(){before})"
        );
        loop {
            match self.ask(&renewing).await {
                0 => tokio::time::sleep(millis(5)).await,
                id => {
                    self.run(&format!("KILL {id}")).await;
                    return id;
                }
            }
        }
    }

    /// Waits until as many sessions are left.
    pub(crate) async fn sessions_fall_to(&mut self, number: usize) {
        while self.sessions().await.len() > number {
            tokio::time::sleep(millis(5)).await;
        }
    }

    /// The session that keeps asleep whoever listens there, once there is one.
    pub(crate) async fn gate_keeper(&mut self, inbox: i64) -> i64 {
        let keeper = format!(
            "SELECT CAST(COALESCE(NULLIF(IS_USED_LOCK('lockkit {inbox} gate'), \
             IS_USED_LOCK('lockkit {inbox}')), 0) AS SIGNED)"
        );
        loop {
            match self.ask(&keeper).await {
                0 => tokio::time::sleep(millis(5)).await,
                keeper => return keeper,
            }
        }
    }

    /// Waits until so many transactions in this database wait for somebody's lock.
    pub(crate) async fn waits_reach(&mut self, number: i64) {
        let waits = "SELECT COUNT(*) FROM information_schema.innodb_trx \
                     JOIN information_schema.processlist AS p ON p.id = trx_mysql_thread_id \
                     WHERE trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
        loop {
            let _alone = LOOKS.lock().await;
            tokio::time::sleep(STALE).await;
            if self.ask::<i64>(waits).await >= number {
                return;
            }
        }
    }

    /// How many transactions of other sessions in this database are open, but for those that sleep
    /// until they are told: these read, and end after a second.
    pub(crate) async fn transactions(&mut self) -> usize {
        let _alone = LOOKS.lock().await;
        tokio::time::sleep(STALE).await;
        let sessions = self.sessions().await;
        let rows = self
            .raw
            .fetch_all(
                "SELECT trx_mysql_thread_id AS id FROM information_schema.innodb_trx \
                 WHERE COALESCE(trx_query, '') NOT LIKE '-- listen%'",
            )
            .await
            .unwrap();
        let ids = rows.iter().map(|row| row.get::<u64, _>("id"));
        ids.filter(|id| sessions.contains(id)).count()
    }
}

/// With a limit to calls that a machine under load keeps, also for short leases.
pub(crate) async fn driver(url: &str) -> MysqlDriver {
    let mark = if url.contains('?') { '&' } else { '?' };
    impatient_driver(&format!("{url}{mark}call_limit=10s")).await
}

/// With limits to calls that follow from the lease.
pub(crate) async fn impatient_driver(url: &str) -> MysqlDriver {
    draw_no_sweep();
    MysqlDriver::connect(&url.parse().unwrap()).await.unwrap()
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

pub(crate) async fn take(driver: &MysqlDriver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn refused(driver: &MysqlDriver, claim: &Claim) -> Taken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(taken) => taken,
        other => panic!("not refused: {other:?}"),
    }
}

/// Waits until the claim is told of what happens from now on.
pub(crate) async fn listen(driver: &MysqlDriver, waiter: &Claim) {
    while refused(driver, waiter).await.is_unheard() {
        assert_eq!(driver.changed(waiter).await, Change::AskAgain);
    }
}

/// Keeps the row of the lock from everybody, until the transaction ends.
pub(crate) async fn keep_locked(database: &mut Database, claim: &Claim) {
    let name = claim.name();
    database
        .run(&format!(
            "START TRANSACTION; SELECT token FROM lockkit_lock \
             WHERE namespace = 'lockkit' AND name = '{name}' FOR UPDATE"
        ))
        .await;
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
