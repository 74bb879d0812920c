//! Who waits in order behind another of the same driver relies on its word, on databases that have no
//! news of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, OwnerId, Renewal, Taken};
use lockkit_core::{LockName, Namespace};
use lockkit_sql::mysql::MysqlDriver;
use lockkit_sql::sqlite::SqliteDriver;
use lockkit_testkit::{Unavailable, mariadb_or_mysql, trial};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::time::sleep;

fn main() -> ExitCode {
    let trials = [on("sqlite", file), on("mysql", server)];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}

fn on(kind: &str, database: fn() -> Result<Database, Unavailable>) -> Vec<Trial> {
    vec![
        trial("who_stands_behind_a_claim_of_the_same_driver_is_told_by_it", database, in_line)
            .with_kind(kind),
        trial("who_comes_back_behind_others_tells_them", database, coming_back).with_kind(kind),
        trial("nobody_relies_on_places_that_came_back_behind_it", database, two_coming_back)
            .with_kind(kind),
        trial("a_place_that_is_not_kept_is_not_relied_on", database, forgotten).with_kind(kind),
    ]
}

async fn in_line(database: Database) {
    let lock = Fair::new();
    let (a, b) = (database.driver().await, database.driver().await);
    let (a, b) = (a.as_ref(), b.as_ref());
    let holder = lock.claim();
    assert!(take(a, &holder).await);
    let [first, second, elsewhere, third] = [(); 4].map(|()| lock.claim());
    assert!(!relies(&refused(a, &first).await), "a hold can be broken by anybody");
    assert!(relies(&refused(a, &second).await));
    assert!(!relies(&refused(b, &elsewhere).await), "who could tell it?");
    assert!(!relies(&refused(a, &third).await), "who could tell it?");
    // Who leaves in the middle tells the next.
    a.release(&first).await.unwrap();
    assert!(has_news(a, &second).await);
    assert!(!relies(&refused(a, &second).await), "a hold can be broken by anybody");
    b.release(&elsewhere).await.unwrap();
    assert!(relies(&refused(a, &third).await));
    a.release(&second).await.unwrap();
    assert!(has_news(a, &third).await);
    refused(a, &third).await;
    // The holder learns that its hold is gone.
    assert!(break_hold(b, &holder).await);
    _ = has_news(a, &third).await;
    assert_eq!(a.renew(&holder).await.unwrap(), Renewal::Lost);
    assert!(has_news(a, &third).await);
    assert!(take(a, &third).await);
    let fourth = lock.claim();
    refused(a, &fourth).await;
    assert!(break_hold(a, &third).await);
    assert!(has_news(a, &fourth).await);
    assert!(take(a, &fourth).await);
}

/// A place ran out while the one behind it relied on being told.
async fn coming_back(database: Database) {
    let (lock, driver) = (Fair::new(), database.driver().await);
    let driver = driver.as_ref();
    let (holder, patient) = (lock.claim(), lock.claim());
    let late = lock.claim();
    assert!(take(driver, &holder).await);
    refused(driver, &late).await;
    assert!(relies(&refused(driver, &patient).await));
    database.run_out(&late).await;
    assert!(relies(&refused(driver, &late).await));
    assert!(has_news(driver, &patient).await);
    refused(driver, &patient).await;
    driver.release(&holder).await.unwrap();
    assert!(has_news(driver, &patient).await);
    assert!(take(driver, &patient).await);
}

/// Two places ran out that stood one after the other, and the one behind them did not.
async fn two_coming_back(database: Database) {
    let (lock, driver) = (Fair::new(), database.driver().await);
    let driver = driver.as_ref();
    let (holder, patient) = (lock.claim(), lock.claim());
    let late = [(); 2].map(|()| lock.claim());
    assert!(take(driver, &holder).await);
    for claim in &late {
        refused(driver, claim).await;
    }
    assert!(relies(&refused(driver, &patient).await));
    for claim in &late {
        database.run_out(claim).await;
    }
    for claim in &late {
        refused(driver, claim).await;
    }
    assert!(!relies(&refused(driver, &patient).await), "it is the first");
    driver.release(&holder).await.unwrap();
    assert!(take(driver, &patient).await);
}

/// Whose it is does not ask any more, and has not been released.
async fn forgotten(database: Database) {
    const LEASE: Duration = Duration::from_secs(3);
    let (lock, driver) = (Fair::new(), database.driver().await);
    let driver = driver.as_ref();
    let (holder, patient) = (lock.claim(), lock.claim());
    assert!(take(driver, &holder).await);
    refused(driver, &lock.lasting(LEASE)).await;
    assert!(relies(&refused(driver, &patient).await));
    // The driver goes by its own clock, too.
    sleep(LEASE + Duration::from_millis(20)).await;
    driver.release(&holder).await.unwrap();
    assert!(take(driver, &patient).await);
}

enum Database {
    File(TempDir),
    Server(String),
}

fn file() -> Result<Database, Unavailable> {
    Ok(Database::File(tempfile::tempdir().unwrap()))
}

fn server() -> Result<Database, Unavailable> {
    let backend = mariadb_or_mysql();
    backend.url().map(Database::Server)
}

impl Database {
    async fn driver(&self) -> Box<dyn Driver> {
        // A limit that a machine under load keeps, also for short leases.
        match self {
            Self::File(folder) => {
                let file = folder.path().join("locks.db");
                let url = format!("sqlite:{}?call_limit=10s", file.display());
                Box::new(SqliteDriver::connect(&url.parse().unwrap()).await.unwrap())
            }
            Self::Server(url) => {
                let url = format!("{url}?call_limit=10s");
                Box::new(MysqlDriver::connect(&url.parse().unwrap()).await.unwrap())
            }
        }
    }

    /// Has the place of a claim run out by now.
    async fn run_out(&self, claim: &Claim) {
        let sql = format!("UPDATE lockkit_place SET expires = 1 WHERE owner = '{}'", claim.owner());
        let update = sqlx::raw_sql(AssertSqlSafe(sql));
        let changed = match self {
            Self::File(folder) => {
                let url = format!("sqlite:{}", folder.path().join("locks.db").display());
                let mut raw = SqliteConnection::connect(&url).await.unwrap();
                update.execute(&mut raw).await.unwrap().rows_affected()
            }
            Self::Server(url) => {
                let mut raw = MySqlConnection::connect(url).await.unwrap();
                update.execute(&mut raw).await.unwrap().rows_affected()
            }
        };
        assert_eq!(changed, 1);
    }
}

/// A lock of one's own, which is asked for in order.
struct Fair(LockName);

impl Fair {
    fn new() -> Self {
        let name = OwnerId::random().to_string();
        Self(LockName::new(&Namespace::default(), &name).unwrap())
    }

    /// With a lease that no test outlives.
    fn claim(&self) -> Claim {
        self.lasting(Duration::from_secs(60))
    }

    fn lasting(&self, lease: Duration) -> Claim {
        Claim::new(self.0.clone(), lease).fair()
    }
}

/// Whether the claim is told by another of its driver: who is told by another process asks within a
/// second, too.
fn relies(taken: &Taken) -> bool {
    taken.is_heard() && taken.asks_within().is_none()
}

async fn take(driver: &dyn Driver, claim: &Claim) -> bool {
    matches!(driver.try_acquire(claim).await.unwrap(), Attempt::Granted(_))
}

async fn refused(driver: &dyn Driver, claim: &Claim) -> Taken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(taken) => taken,
        granted => panic!("granted: {granted:?}"),
    }
}

async fn break_hold(driver: &dyn Driver, claim: &Claim) -> bool {
    driver.inspect().unwrap().break_hold(claim.name(), None).await.unwrap().is_some()
}

/// Whether there is news for a claim already.
async fn has_news(driver: &dyn Driver, claim: &Claim) -> bool {
    tokio::select! {
        biased;
        change = driver.changed(claim) => {
            assert_eq!(change, Change::AskAgain);
            true
        }
        () = std::future::ready(()) => false,
    }
}
