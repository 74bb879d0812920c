//! PgBouncer between the driver and the server.

use std::sync::Arc;

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, ErrorKind, Release, Renewal};
use lockkit_core::{Error, Grade, Locker};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{POSTGRES, PgBouncer, PoolMode, Proxy, Server, Unavailable, trial};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use crate::support::{Raw, causes, claim, connect, driver, kind, millis, refused, take};
use crate::sweeps::draw_no_sweep;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("pgbouncer::transactions_are_refused", || pooled(PoolMode::Transaction), refuses),
        trial("pgbouncer::sessions_work", || pooled(PoolMode::Session), works),
        trial(
            "pgbouncer::a_session_that_went_to_another_client_is_left_alone",
            || pooled(PoolMode::Session),
            given_away,
        ),
        trial(
            "pgbouncer::a_session_that_comes_back_is_a_new_one",
            || pooled(PoolMode::Session),
            given_back,
        ),
        trial("pgbouncer::leases_work_with_sessions", || pooled(PoolMode::Session), leases),
        trial(
            "pgbouncer::leases_say_that_transactions_are_pooled",
            || pooled(PoolMode::Transaction),
            leases_pooled,
        ),
        trial(
            "pgbouncer::a_look_ends_in_time_and_leaves_nothing_behind",
            || pooled(PoolMode::Transaction),
            looks_pooled,
        ),
    ]
}

fn pooled(mode: PoolMode) -> Result<(Server, PgBouncer), Unavailable> {
    let server = POSTGRES.start()?;
    let pooler = PgBouncer::start(&server, mode)?;
    Ok((server, pooler))
}

async fn refuses((server, pooler): (Server, PgBouncer)) {
    let error = connect(&pooler.url("postgres"), "ttl=2s").await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("pooler"), "{error:?}");
    found_as_it_was(&pooler).await;
    let mut raw = PgConnection::connect(&server.url()).await.unwrap();
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(sqlx::query(locks).fetch_one(&mut raw).await.unwrap().get::<i64, _>(0), 0);
}

/// Whoever gets a session of the server next finds nothing set there.
async fn found_as_it_was(pooler: &PgBouncer) {
    let options: PgConnectOptions = pooler.url("postgres").parse().unwrap();
    let mut next = options.extra_float_digits(None).connect().await.unwrap();
    for setting in ["idle_session_timeout", "tcp_user_timeout", "lock_timeout"] {
        let asking = sqlx::query("SELECT setting FROM pg_settings WHERE name = $1").bind(setting);
        let row = asking.persistent(false).fetch_one(&mut next).await.unwrap();
        assert_eq!(row.get::<&str, _>(0), "0", "{setting}");
    }
}

async fn works((server, pooler): (Server, PgBouncer)) {
    let (far, near) = (driver(&pooler.url("postgres"), "").await, driver(&server.url(), "").await);
    let held = claim("orders");
    take(&*far, &held).await;
    refused(&*near, &claim("orders")).await;
    let seen = near.inspect().unwrap().look(held.name()).await.unwrap();
    assert_eq!(seen.holder().unwrap().owner(), held.owner());
    assert_ne!(far.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(far.release(&held).await.unwrap(), Release::Freed);
    take(&*near, &claim("orders")).await;
    refused(&*far, &claim("orders")).await;
}

/// A driver whose connection broke after its session had held a lock.
struct CutOff {
    driver: Arc<dyn Driver>,
    /// Between it and the pooler.
    _proxy: Proxy,
    options: PgConnectOptions,
    /// To the server itself.
    raw: Raw,
    session: i64,
}

impl CutOff {
    async fn by((server, pooler): (&Server, &PgBouncer)) -> Self {
        let options: PgConnectOptions = pooler.url("postgres").parse().unwrap();
        let proxy = Proxy::start(([127, 0, 0, 1], options.get_port()).into()).await;
        let url = format!("postgres://postgres@{}/postgres", proxy.addr());
        let (driver, held) = (driver(&url, "ttl=1h").await, claim("orders"));
        take(&*driver, &held).await;
        let mut raw = Raw::to(server).await;
        let session = raw.session().await;
        // Without a hold there is no heartbeat, in the midst of which the session would not be given
        // to another client.
        assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
        proxy.reset().await;
        let options = options.extra_float_digits(None);
        Self { driver, _proxy: proxy, options, raw, session }
    }
}

async fn given_away((server, pooler): (Server, PgBouncer)) {
    const PID: &str = "SELECT pg_backend_pid()::bigint";
    let far = CutOff::by((&server, &pooler)).await;
    let mut others = Vec::new();
    let mut next = loop {
        let mut next = Raw::Postgres(far.options.connect().await.unwrap());
        match next.ask(PID, PID).await {
            session if session == far.session => break next,
            _ => others.push(next),
        }
    };
    assert!(next.takes("7").await);
    take(&*far.driver, &claim("other")).await;
    assert_eq!(next.ask(PID, PID).await, far.session);
    assert!(!Raw::to(&server).await.takes("7").await, "its lock was freed");
}

async fn given_back((server, pooler): (Server, PgBouncer)) {
    let mut far = CutOff::by((&server, &pooler)).await;
    let is_clean = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE pid = {} AND state = 'idle' AND query = 'DISCARD ALL'",
        far.session
    );
    while far.raw.ask(&is_clean, "").await == 0 {
        tokio::time::sleep(millis(1)).await;
    }
    take(&*far.driver, &claim("other")).await;
    let session = "SELECT pid::bigint FROM lockkit_session WHERE name = 'other'";
    assert_eq!(far.raw.ask(session, "").await, far.session, "it got another one");
}

async fn leases((server, pooler): (Server, PgBouncer)) {
    let driver = |url: String| async move {
        let url = format!("{url}?call_limit=10s").parse().unwrap();
        draw_no_sweep();
        PostgresDriver::connect(&url).await.unwrap()
    };
    let (far, near) = (driver(pooler.url("postgres")).await, driver(server.url()).await);
    let held = claim("orders");
    take(&far, &held).await;
    refused(&near, &claim("orders")).await;
    assert_eq!(far.release(&held).await.unwrap(), Release::Freed);
}

/// Where the pooler carries prepared statements over, locks work, and only news do not come.
async fn leases_pooled((_server, pooler): (Server, PgBouncer)) {
    let url = format!("{}?call_limit=10s", pooler.url("postgres")).parse().unwrap();
    let said = async {
        let connect = || {
            draw_no_sweep();
            PostgresDriver::connect(&url)
        };
        let (one, other) = (connect().await?, connect().await?);
        for driver in [&one, &other] {
            let taken = driver.try_acquire(&claim("orders")).await;
            taken.map_err(|error| Error::connecting("postgres", error))?;
        }
        Ok([one, other])
    };
    match said.await {
        Err(error) => {
            assert!(!pooler.carries_prepared_statements());
            assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
            assert!(causes(&error).contains("pooler"), "{error:?}");
        }
        Ok(drivers) => {
            assert!(
                pooler.carries_prepared_statements(),
                "a pooler that breaks prepared statements was not noticed"
            );
            wait_by_polling(drivers.map(Locker::new)).await;
        }
    }
}

/// One session is enough for one driver, of which asks leave one connection of two to others: so nothing
/// depends on whether the pooler carries prepared statements over.
async fn looks_pooled((server, pooler): (Server, PgBouncer)) {
    // The tables are there: who makes them need not look whether they are as they should be.
    PostgresDriver::connect(&server.url().parse().unwrap()).await.unwrap().close().await;
    let url = format!("{}?connections=2&call_limit=8s", pooler.url("postgres"));
    let driver = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap();
    let (inspect, name) = (driver.inspect().unwrap(), claim("orders"));
    let mut keeper = Raw::to(&server).await;
    keeper.run("BEGIN; LOCK TABLE lockkit_lock").await;
    let (kind, text) = kind(inspect.look(name.name()).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    assert!(text.contains("lock timeout"), "{text}");
    found_as_it_was(&pooler).await;
    keeper.run("COMMIT").await;
    assert!(inspect.look(name.name()).await.unwrap().holder().is_none());
    found_as_it_was(&pooler).await;
}

async fn wait_by_polling([one, other]: [Locker; 2]) {
    let held = one.lock("invoices").unwrap().acquire().await.unwrap();
    let lock = other.lock("invoices").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let findings = other.diagnose().await.unwrap();
    let pooler = findings.iter().find(|finding| finding.topic() == "pooler").unwrap();
    assert_eq!(pooler.grade(), Grade::Warning, "{pooler:?}");
}
