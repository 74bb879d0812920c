use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{Attempt, Driver as _, ErrorKind, Inspect as _, Release, Renewal};
use lockkit_core::{Error, Locker};
use lockkit_sql::sqlite::SqliteDriver;
use tokio::time::{Instant, timeout};

use crate::support::{
    Fixture, HANG, binds_nobody, claim, execute, granted, name, number, refused, token, told,
    told_by_driver,
};

#[tokio::test]
async fn a_busy_database_is_unreachable_after_the_call_limit() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("held");
    granted(&driver, &held).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;

    let wanted = claim("wanted");
    let [hurried_wanted, hurried] =
        [&wanted, &held].map(|claim| claim.clone().with_ttl(Duration::from_secs(4)));
    let asked = async {
        let taken = driver.try_acquire(&hurried_wanted).await.unwrap_err();
        let renewed = driver.renew(&hurried).await.unwrap_err();
        let released = driver.release(&hurried).await.unwrap_err();
        [taken, renewed, released]
    };
    for error in timeout(HANG, asked).await.unwrap() {
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let told = told_by_driver(error);
        assert!(told.contains("locks.db") && told.contains("locked"), "{told}");
    }
    execute(&mut raw, "ROLLBACK").await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    granted(&driver, &wanted).await;
}

#[tokio::test]
async fn a_call_limit_can_be_given() {
    let fixture = Fixture::new();
    let url = format!("sqlite:{}?call_limit=30s", fixture.path().display());
    let driver = SqliteDriver::connect(&url.parse().unwrap()).await.unwrap();
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    let hurried = claim("a").with_ttl(Duration::from_millis(200));
    let asking = tokio::spawn(async move { driver.try_acquire(&hurried).await });
    // By itself it would wait for 40 ms.
    tokio::time::sleep(Duration::from_millis(200)).await;
    execute(&mut raw, "ROLLBACK").await;
    assert!(matches!(asking.await.unwrap().unwrap(), Attempt::Granted(_)));
}

/// Without a write-ahead log, who reads keeps others from committing.
#[tokio::test]
async fn what_cannot_be_committed_leaves_the_database_to_others() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    driver.close().await;
    let (mut reader, mut writer) = (fixture.raw().await, fixture.raw().await);
    execute(&mut reader, "PRAGMA journal_mode = DELETE").await;
    execute(&mut reader, "BEGIN").await;
    assert_eq!(number(&mut reader, "SELECT COUNT(*) FROM lockkit_hold").await, 0);
    let held = claim("a");
    let error = driver.try_acquire(&held).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    execute(&mut reader, "COMMIT").await;
    execute(&mut writer, "BEGIN IMMEDIATE; ROLLBACK").await;
    granted(&driver, &held).await;
}

/// A writer that is done within the limit is only waited for.
#[tokio::test]
async fn a_busy_database_is_waited_for() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    let asking = tokio::spawn(async move { token(&driver, &claim("a")).await });
    tokio::task::yield_now().await;
    execute(&mut raw, "COMMIT").await;
    timeout(HANG, asking).await.unwrap().unwrap();
}

/// SQLite is kept at work by a trigger that counts for a while.
#[tokio::test]
async fn a_request_that_takes_too_long_is_unknown_and_the_next_waits_for_it() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut raw = fixture.raw().await;
    execute(
        &mut raw,
        "CREATE TRIGGER slow AFTER INSERT ON lockkit_hold BEGIN
             SELECT count(*) FROM (WITH RECURSIVE n(i) AS
                 (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT i FROM n);
         END",
    )
    .await;
    let claim = claim("a").with_ttl(Duration::from_millis(200));
    let error = timeout(HANG, driver.try_acquire(&claim)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{}", told_by_driver(error));
    let error = timeout(HANG, driver.release(&claim)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let told = told_by_driver(error);
    assert!(told.contains("earlier requests are still being carried out"), "{told}");

    // A release that is carried out comes after the ask, so nothing is left.
    let patient = claim.with_ttl(Duration::from_secs(100));
    for attempt in 0.. {
        match timeout(HANG, driver.release(&patient)).await.unwrap() {
            Ok(_) => break,
            Err(error) => assert!(attempt < 10, "{}", told_by_driver(error)),
        }
    }
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_hold").await, 0);
}

/// Nobody else waits for a runtime that is busy with something else.
#[tokio::test]
async fn a_stalled_runtime_does_not_hold_the_database() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let claim_of_stalled = claim("a");
    let mut asking = driver.try_acquire(&claim_of_stalled);
    tokio::select! {
        biased;
        _ = &mut asking => panic!("answered without waiting for SQLite's thread"),
        () = std::future::ready(()) => (),
    }
    let path = fixture.path();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let driver = SqliteDriver::open(path).await.unwrap();
            token(&driver, &claim("b")).await;
        });
    });
    other.join().unwrap();
    assert!(matches!(asking.await.unwrap(), Attempt::Granted(_)));
}

/// As when its runtime is shut down.
#[tokio::test]
async fn a_dropped_request_leaves_the_driver_usable() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let dropped = claim("a");
    tokio::select! {
        biased;
        _ = driver.try_acquire(&dropped) => panic!("answered without waiting for SQLite's thread"),
        () = std::future::ready(()) => (),
    }
    granted(&driver, &claim("b")).await;
    driver.release(&dropped).await.unwrap();
    granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_binds_nobody() {
    for replace in [false, true] {
        let fixture = Fixture::new();
        let driver = fixture.driver().await;
        let held = claim("held");
        granted(&driver, &held).await;
        std::fs::rename(fixture.path(), fixture.folder().join("moved.db")).unwrap();
        for suffix in ["-wal", "-shm"] {
            let log = fixture.folder().join(format!("locks.db{suffix}"));
            std::fs::rename(log, fixture.folder().join(format!("moved.db{suffix}"))).unwrap();
        }
        if replace {
            granted(&fixture.driver().await, &held).await;
        }
        binds_nobody(&driver, &held).await;
    }
}

/// They wait for the connection that renews it, more of them than it can serve in time.
#[tokio::test]
async fn a_hold_outlives_a_crowd_of_asks() {
    let fixture = Fixture::new();
    let ttl = Duration::from_secs(5);
    // With a shorter limit to calls than follows from the TTL, so that more of them are too late.
    let url = format!("sqlite:{}?call_limit=400ms", fixture.path().display());
    let driver = SqliteDriver::connect(&url.parse().unwrap()).await.unwrap();
    let locker = Locker::builder(driver).ttl(ttl).build().unwrap();
    let guard = locker.lock("orders").unwrap().acquire().await.unwrap();
    let until = Instant::now() + 2 * ttl;
    let asks = (0..4_000).map(|number| {
        let lock = locker.lock(&format!("{number}")).unwrap();
        async move {
            while Instant::now() < until {
                // Some are too late.
                _ = lock.try_acquire().await;
            }
        }
    });
    join_all(asks).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A folder that cannot be looked into for a while is no file that was deleted.
#[tokio::test]
async fn whoever_cannot_see_the_file_does_not_know() {
    let fixture = Fixture::new();
    let (folder, link) = (fixture.folder().join("folder"), fixture.folder().join("link"));
    let lead_to = |target: &Path| {
        // There may be none yet.
        _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
    };
    std::fs::create_dir(&folder).unwrap();
    lead_to(&folder);
    let driver = SqliteDriver::open(link.join("locks.db")).await.unwrap();
    let held = claim("held");
    granted(&driver, &held).await;
    // A circle.
    lead_to(&link);
    assert_eq!(driver.renew(&held).await.unwrap_err().kind(), ErrorKind::Unknown);
    lead_to(&folder);
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    lead_to(&link);
    assert_eq!(driver.release(&held).await.unwrap_err().kind(), ErrorKind::Unknown);
    lead_to(&folder);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    granted(&driver, &claim("held")).await;
}

#[tokio::test]
async fn a_link_is_the_file_that_it_leads_to() {
    let fixture = Fixture::new();
    let link = fixture.folder().join("link.db");
    std::os::unix::fs::symlink(fixture.path(), &link).unwrap();
    let (by_link, by_path) = (SqliteDriver::open(&link).await.unwrap(), fixture.driver().await);
    granted(&by_link, &claim("a")).await;
    refused(&by_path, &claim("a")).await;

    // Led elsewhere, it is another file.
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(fixture.folder().join("other.db"), &link).unwrap();
    let error = by_link.try_acquire(&claim("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    granted(&by_path, &claim("b")).await;
}

#[tokio::test]
async fn tables_that_vanish_are_foreign_and_heal_nothing() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    execute(&mut fixture.raw().await, "DROP TABLE lockkit_hold").await;
    for _ in 0..2 {
        let error = driver.try_acquire(&claim("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{}", told_by_driver(error));
    }
    // Nor in a database that is as if it were new.
    const REST: &str = "DROP TABLE lockkit_place; DROP TABLE lockkit_counter; \
                        PRAGMA application_id = 0; PRAGMA user_version = 0";
    execute(&mut fixture.raw().await, REST).await;
    let asked = driver.try_acquire(&claim("a")).await.map(drop);
    for error in [asked, driver.look(&name("a")).await.map(drop)].map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Foreign);
        assert!(told_by_driver(error).contains("its tables are gone"));
    }
}

#[tokio::test]
async fn a_full_disk_is_a_lack_of_room_and_passes() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut raw = fixture.raw().await;
    // Rows that end in disorder stand for what cannot be stored.
    execute(
        &mut raw,
        "CREATE TRIGGER full BEFORE INSERT ON lockkit_hold BEGIN SELECT RAISE(ABORT, 'no room'); END",
    )
    .await;
    let error = driver.try_acquire(&claim("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{}", told_by_driver(error));
    execute(&mut raw, "DROP TRIGGER full").await;
    granted(&driver, &claim("a")).await;
}

/// Each thread's stack would be larger than any memory.
#[test]
fn a_lack_of_threads_is_a_lack_of_room() {
    let fixture = Fixture::new();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().thread_stack_size(usize::MAX / 4).build().unwrap();
    let error = runtime.block_on(SqliteDriver::open(&fixture.path())).unwrap_err();
    assert!(matches!(error, Error::Capacity(_)), "{error:?}");
}

#[tokio::test]
async fn a_read_only_database_is_denied() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    driver.close().await;
    drop(driver);
    // Root may write anywhere, so the file says it by its header: a write version that SQLite
    // does not know makes it read-only (https://www.sqlite.org/fileformat.html#file_format_version_numbers).
    let mut bytes = std::fs::read(fixture.path()).unwrap();
    bytes[18] = 9;
    std::fs::write(fixture.path(), bytes).unwrap();
    let error = SqliteDriver::open(fixture.path()).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{}", told(&error));
}

#[tokio::test]
async fn requests_after_close_find_the_database_again() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    driver.close().await;
    assert!(!fixture.folder().join("locks.db-wal").exists(), "the connection is not closed");
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
}
