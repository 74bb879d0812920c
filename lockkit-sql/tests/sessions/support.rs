use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, OwnerId, Release, Renewal,
};
use lockkit_core::{FencingToken, LockName, Locker, Namespace};
use lockkit_sql::mysql::session::MysqlSessionDriver;
use lockkit_sql::postgres::session::PostgresSessionDriver;
use lockkit_testkit::{Backend, POSTGRES, Server, mariadb_or_mysql, trial};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::sweeps::draw_no_sweep;

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The same test on a server of each kind, which is the test's own.
pub(crate) fn on_each<F>(name: &str, test: fn(Server) -> F) -> [Trial; 2]
where
    F: Future<Output = ()> + 'static,
{
    let on = |backend: &'static Backend| {
        let name = format!("{}::{name}", backend.id());
        trial(&name, || backend.start(), test)
    };
    [on(&POSTGRES), on(mariadb_or_mysql())]
}

/// The same on two servers of a kind.
pub(crate) fn on_each_two<F>(name: &str, test: fn([Server; 2]) -> F) -> [Trial; 2]
where
    F: Future<Output = ()> + 'static,
{
    let on = |backend: &'static Backend| {
        let name = format!("{}::{name}", backend.id());
        trial(&name, || Ok([backend.start()?, backend.start()?]), test)
    };
    [on(&POSTGRES), on(mariadb_or_mysql())]
}

/// A plain client, to look and to tamper.
pub(crate) enum Raw {
    Postgres(PgConnection),
    Mysql(MySqlConnection),
}

impl Raw {
    pub(crate) async fn to(server: &Server) -> Self {
        let url = server.url();
        match url.starts_with("postgres:") {
            true => Self::Postgres(PgConnection::connect(&url).await.unwrap()),
            false => Self::Mysql(MySqlConnection::connect(&url).await.unwrap()),
        }
    }

    /// Carries out statements.
    pub(crate) async fn run(&mut self, statements: &str) {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        match self {
            Self::Postgres(raw) => drop(statements.execute(raw).await.unwrap()),
            Self::Mysql(raw) => drop(statements.execute(raw).await.unwrap()),
        }
    }

    /// The one number that a query yields: of the server's kind.
    pub(crate) async fn ask(&mut self, postgres: &str, mysql: &str) -> i64 {
        match self {
            Self::Postgres(raw) => {
                let query = sqlx::query(AssertSqlSafe(postgres)).persistent(false);
                query.fetch_one(raw).await.unwrap().get(0)
            }
            Self::Mysql(raw) => {
                let query = sqlx::query(AssertSqlSafe(mysql)).persistent(false);
                query.fetch_one(raw).await.unwrap().get(0)
            }
        }
    }

    /// How many sessions of drivers there are.
    pub(crate) async fn sessions(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkit'",
            "SELECT count(*) FROM information_schema.processlist \
             WHERE db = 'shop' AND id <> CONNECTION_ID()",
        )
        .await
    }

    /// Which session was granted a lock, where only one was.
    pub(crate) async fn session(&mut self) -> i64 {
        self.ask(
            "SELECT max(pid)::bigint FROM lockkit_session",
            "SELECT CAST(MAX(IS_USED_LOCK(session)) AS SIGNED) FROM lockkit_session",
        )
        .await
    }

    /// How many locks sessions hold, beside their marks.
    pub(crate) async fn locks(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1",
            "SELECT count(*) FROM lockkit_session WHERE IS_USED_LOCK(locked) IS NOT NULL",
        )
        .await
    }

    /// How many transactions are open beside this one.
    pub(crate) async fn transactions(&mut self) -> i64 {
        self.ask(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = 'lockkit' AND state <> 'idle'",
            "SELECT count(*) FROM information_schema.innodb_trx \
             WHERE trx_mysql_thread_id <> CONNECTION_ID()",
        )
        .await
    }

    /// Ends the sessions of drivers, as an administrator would.
    pub(crate) async fn end_sessions(&mut self) {
        match self {
            Self::Postgres(_) => {
                self.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE application_name = 'lockkit'",
                )
                .await;
            }
            Self::Mysql(raw) => {
                let query = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                             WHERE db = 'shop' AND id <> CONNECTION_ID()";
                let sessions = sqlx::query(query).fetch_all(&mut *raw).await.unwrap();
                for session in sessions {
                    self.end_session(session.get(0)).await;
                }
            }
        }
    }

    /// Ends one session, which may have ended by itself.
    pub(crate) async fn end_session(&mut self, session: i64) {
        match self {
            Self::Postgres(_) => self.run(&format!("SELECT pg_terminate_backend({session})")).await,
            Self::Mysql(raw) => {
                let kill = format!("KILL {session}");
                _ = sqlx::raw_sql(AssertSqlSafe(kill)).execute(&mut *raw).await;
            }
        }
    }

    /// Breaks off what a session does.
    pub(crate) async fn interrupt(&mut self, session: i64) {
        match self {
            Self::Postgres(_) => self.run(&format!("SELECT pg_cancel_backend({session})")).await,
            Self::Mysql(_) => self.run(&format!("KILL QUERY {session}")).await,
        }
    }

    /// Returns when a session holds a lock.
    pub(crate) async fn until_locked(&mut self) {
        while self.locks().await == 0 {
            tokio::time::sleep(millis(1)).await;
        }
    }

    /// Whether another program gets the lock of that exact name.
    pub(crate) async fn takes(&mut self, exact: &str) -> bool {
        let postgres = format!("SELECT pg_try_advisory_lock({exact})::int::bigint");
        let mysql = format!("SELECT CAST(GET_LOCK('{exact}', 0) AS SIGNED)");
        self.ask(&postgres, &mysql).await == 1
    }

    pub(crate) async fn gives_back(&mut self, exact: &str) {
        let postgres = format!("SELECT pg_advisory_unlock({exact})::int::bigint");
        let mysql = format!("SELECT CAST(RELEASE_LOCK('{exact}') AS SIGNED)");
        assert_eq!(self.ask(&postgres, &mysql).await, 1);
    }
}

/// A driver of sessions, with further parameters, and a limit to calls that a machine under load
/// keeps.
pub(crate) async fn driver(url: &str, parameters: &str) -> Arc<dyn Driver> {
    impatient_driver(url, &format!("call_limit=10s&{parameters}")).await
}

/// The same with limits to calls that follow from the parameters.
pub(crate) async fn impatient_driver(url: &str, parameters: &str) -> Arc<dyn Driver> {
    draw_no_sweep();
    connect(url, parameters).await.unwrap()
}

pub(crate) async fn connect(url: &str, parameters: &str) -> lockkit_core::Result<Arc<dyn Driver>> {
    // MySQL has a certificate of its own, and a proxy is to see what is said.
    let tls = if url.starts_with("mysql:") { "ssl-mode=disabled&" } else { "" };
    let url = format!("{url}?hold=session&{tls}{parameters}").parse().unwrap();
    Ok(match lockkit_core::BackendUrl::scheme(&url) {
        "postgres" => Arc::new(PostgresSessionDriver::connect(&url).await?),
        _ => Arc::new(MysqlSessionDriver::connect(&url).await?),
    })
}

/// A locker whose session is ended by the server after `ttl`.
pub(crate) async fn locker(url: &str, ttl: Duration) -> Locker {
    let driver = driver(url, &format!("ttl={}ms", ttl.as_millis())).await;
    Locker::builder_from_arc(driver).ttl(ttl).build().unwrap()
}

pub(crate) fn claim(name: &str) -> Claim {
    claim_in(&Namespace::default(), name)
}

pub(crate) fn claim_in(namespace: &Namespace, name: &str) -> Claim {
    Claim::new(LockName::new(namespace, name).unwrap(), LONG)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn take(driver: &dyn Driver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn refused(driver: &dyn Driver, claim: &Claim) {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(_) => (),
        other => panic!("not refused: {other:?}"),
    }
}

/// Asks until the lock is free.
pub(crate) async fn take_in_the_end(driver: &dyn Driver, claim: &Claim) -> FencingToken {
    loop {
        match driver.try_acquire(claim).await {
            Ok(Attempt::Granted(grant)) => return grant.fencing_token().unwrap(),
            Ok(_) => (),
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
        tokio::time::sleep(millis(10)).await;
    }
}

/// Renews until that is answered.
pub(crate) async fn renew_in_the_end(driver: &dyn Driver, claim: &Claim) -> Renewal {
    loop {
        match driver.renew(claim).await {
            Ok(renewal) => return renewal,
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

/// Releases until that is answered.
pub(crate) async fn release_in_the_end(driver: &dyn Driver, claim: &Claim) -> Release {
    loop {
        match driver.release(claim).await {
            Ok(release) => return release,
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

/// The kind of the error, and a text with all causes.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, DriverError>) -> (ErrorKind, String) {
    let error = result.unwrap_err();
    (error.kind(), causes(&*error.into_source()))
}

pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| format!("{error}; ")).collect()
}

pub(crate) fn of_a_process(id: i64) -> OwnerId {
    format!("{id:032x}").parse().unwrap()
}
