use std::collections::HashSet;
use std::path::Path;

use lockkit_core::driver::Driver as _;
use lockkit_core::{BackendUrl, Error};
use lockkit_sql::sqlite::SqliteDriver;
use sqlx::Row as _;

use crate::support::{Fixture, claim, execute, number, raw, token, told};

/// A database made by lockkit 0.1 stays usable: a change of this file is a new layout.
#[tokio::test]
async fn layout_1_is_as_it_was() {
    let fixture = Fixture::new();
    let mut raw = fixture.raw().await;
    execute(&mut raw, include_str!("layout-1.sql")).await;
    let driver = fixture.driver().await;

    let held = claim("orders/42").with_label("it's \"me\"".parse().unwrap());
    let token = token(&driver, &held).await;
    let row = sqlx::query("SELECT * FROM lockkit_hold").fetch_one(&mut raw).await.unwrap();
    assert_eq!(row.get::<&str, _>("namespace"), "lockkit");
    assert_eq!(row.get::<&str, _>("name"), "orders/42");
    assert_eq!(row.get::<&str, _>("owner"), held.owner().to_string());
    assert_eq!(row.get::<i64, _>("token"), i64::try_from(token).unwrap());
    assert_eq!(row.get::<&str, _>("label"), "it's \"me\"");
    assert_eq!(row.get::<i64, _>("ttl"), 60_000_000);
    assert_eq!(row.get::<i64, _>("since") + 60_000_000, row.get::<i64, _>("expires"));
    assert!(row.get::<&str, _>("clock").contains(':'));

    let waiting = claim("orders/42").fair();
    driver.try_acquire(&waiting).await.unwrap();
    let row = sqlx::query("SELECT * FROM lockkit_place").fetch_one(&mut raw).await.unwrap();
    assert_eq!(row.get::<i64, _>("arrival"), 1);
    assert_eq!(row.get::<&str, _>("owner"), waiting.owner().to_string());
    assert_eq!(row.get::<&str, _>("label"), waiting.label().as_str());
    assert_eq!(row.get::<i64, _>("since") + 60_000_000, row.get::<i64, _>("expires"));

    for claim in [held, waiting] {
        driver.release(&claim).await.unwrap();
    }
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_hold").await, 0);
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_place").await, 0);
    assert_eq!(
        number(&mut raw, "SELECT last FROM lockkit_counter").await,
        i64::try_from(token).unwrap()
    );
}

#[tokio::test]
async fn a_new_database_is_marked_and_has_a_write_ahead_log() {
    let fixture = Fixture::new();
    let _driver = fixture.driver().await;
    let mut raw = fixture.raw().await;
    assert_eq!(number(&mut raw, "PRAGMA application_id").await, 0x6c6b_6974);
    assert_eq!(number(&mut raw, "PRAGMA user_version").await, 1);
    let journal: String =
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut raw).await.unwrap();
    assert_eq!(journal, "wal");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_at_once_create_one_database() {
    for _ in 0..10 {
        let fixture = Fixture::new();
        let opening = (0..10).map(|_| tokio::spawn(SqliteDriver::open(fixture.path())));
        let opening: Vec<_> = opening.collect();
        let mut tokens = HashSet::new();
        for driver in opening {
            let driver = driver.await.unwrap().unwrap();
            let claim = claim("a");
            assert!(tokens.insert(token(&driver, &claim).await), "a token was given twice");
            driver.release(&claim).await.unwrap();
        }
    }
}

async fn refused(path: &Path) -> Error {
    SqliteDriver::open(path).await.unwrap_err()
}

#[tokio::test]
async fn what_is_not_ours_is_refused_and_not_touched() {
    let fixture = Fixture::new();
    for (file, sql, reason) in [
        ("other.db", "CREATE TABLE users (id)", "the database of something else"),
        ("versioned.db", "PRAGMA user_version = 7", "the database of something else"),
        (
            "squatted.db",
            "CREATE TABLE lockkit_hold (a, b); PRAGMA application_id = 0x6c6b6974; \
             PRAGMA user_version = 1",
            "other tables",
        ),
        (
            "changed.db",
            concat!(include_str!("layout-1.sql"), "ALTER TABLE lockkit_hold ADD COLUMN mode TEXT"),
            "wrong: [\"hold\"]",
        ),
    ] {
        let path = fixture.folder().join(file);
        execute(&mut raw(&path).await, sql).await;
        let before = std::fs::read(&path).unwrap();
        let error = refused(&path).await;
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert!(told(&error).contains(reason), "{}", told(&error));
        assert!(told(&error).contains(file), "{}", told(&error));
        assert_eq!(std::fs::read(&path).unwrap(), before, "{file} was written");
    }
    let text = fixture.folder().join("text.db");
    std::fs::write(&text, "Dear diary, today I locked nothing at all.").unwrap();
    assert!(matches!(refused(&text).await, Error::Foreign(_)));
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("Dear diary"));
}

#[tokio::test]
async fn a_newer_layout_is_refused_and_not_touched() {
    let fixture = Fixture::new();
    drop(fixture.driver().await);
    let mut raw = fixture.raw().await;
    execute(&mut raw, "PRAGMA user_version = 2; PRAGMA wal_checkpoint(TRUNCATE)").await;
    let error = refused(&fixture.path()).await;
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(told(&error).contains("layout version 2"), "{}", told(&error));
    assert_eq!(number(&mut raw, "PRAGMA user_version").await, 2);
}

#[tokio::test]
async fn places_where_no_database_can_be_are_refused() {
    let fixture = Fixture::new();
    let error = refused(&fixture.folder().join("no/such/locks.db")).await;
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(told(&error).contains("its directory does not exist"), "{}", told(&error));

    let error = refused(fixture.folder()).await;
    assert!(told(&error).contains("not a file"), "{}", told(&error));

    drop(fixture.driver().await);
    let second_name = fixture.folder().join("second-name.db");
    std::fs::hard_link(fixture.path(), &second_name).unwrap();
    assert!(told(refused(&second_name).await).contains("hard links"));
    assert!(told(refused(&fixture.path()).await).contains("hard links"));

    // Nobody, not even root, may create files there.
    #[cfg(target_os = "linux")]
    {
        let error = refused(Path::new("/proc/self/locks.db")).await;
        assert!(matches!(error, Error::Denied(_) | Error::Misconfigured(_)), "{error:?}");
    }
}

async fn connect(url: &str) -> Result<SqliteDriver, Error> {
    SqliteDriver::connect(&url.parse::<BackendUrl>()?).await
}

#[tokio::test]
async fn a_url_names_a_file() {
    let fixture = Fixture::new();
    let path = fixture.path();
    for url in [format!("sqlite:{}", path.display()), format!("sqlite://{}", path.display())] {
        assert_eq!(connect(&url).await.unwrap().path(), path);
    }
    for (url, reason) in [
        ("sqlite://locks.db", "write `sqlite:locks.db`"),
        ("sqlite://var/locks.db", "`sqlite:///var/locks.db`"),
        ("sqlite::memory:", "`memory:`"),
        ("sqlite:", "names no file"),
        ("sqlite://", "names no file"),
        ("sqlite://me:secret@/locks.db", "no user"),
        ("sqlite:locks.db?journal=off", "known are: namespace"),
        ("redis:locks.db", "`sqlite`"),
        ("sqlite:locks.db?call_limit=0s", "at most 30s"),
        ("sqlite:locks.db?call_limit=31s", "at most 30s"),
    ] {
        let error = connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

/// SQLite would take `file:...` for a URI.
#[tokio::test]
async fn awkward_file_names_are_only_names() {
    let fixture = Fixture::new();
    for file in ["file:a.db?mode=memory", ":memory:", "a b%20#.db", "ü.db"] {
        let path = fixture.folder().join(file);
        let driver = SqliteDriver::open(&path).await.unwrap();
        token(&driver, &claim("a")).await;
        assert!(path.is_file(), "{file} is not there");
    }
}
