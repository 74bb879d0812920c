use std::fs;

use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Row as _};

use crate::schema::conforming;
use crate::support::{Ended, Locks, Running, lockkit};

/// `lockkit doctor` with these arguments, until it ends.
fn doctor(url: &str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lockkit();
    command.current_dir(folder.path()).env("LOCKKIT_URL", url).arg("doctor").args(arguments);
    Running::start(command).finish()
}

/// The findings of `lockkit doctor --json`, which conforms to the schema, and the exit code.
fn findings(url: &str) -> (i32, Vec<Value>) {
    let ended = doctor(url, &["--json"]);
    assert_eq!(ended.err, "");
    let value = conforming(&ended.out, "doctor.schema.json");
    (ended.code, value["findings"].as_array().unwrap().clone())
}

#[test]
fn a_sound_backend_is_0() {
    let locks = Locks::new();
    let ended = doctor(&locks.url(), &[]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.starts_with("good "), "{ended:?}");
    let (code, findings) = findings(&locks.url());
    assert_eq!(code, 0);
    assert!(findings.len() > 1 && findings.iter().all(|finding| finding["grade"] != "error"));
}

#[test]
fn what_cannot_be_connected_to_is_a_finding_with_advice() {
    for (url, topic) in [
        ("redis://me:hunter2@127.0.0.1:1", "connection"),
        ("sqlite:/nowhere/at/all.db", "connection"),
        ("nonsense", "url"),
        ("memory:", "url"),
        ("", "url"),
    ] {
        let (code, findings) = findings(url);
        let [finding] = &findings[..] else { panic!("{url}: {findings:?}") };
        assert_eq!(
            (code, &finding["grade"], &finding["topic"]),
            (1, &"error".into(), &topic.into())
        );
        assert!(finding["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{finding}");
        let ended = doctor(url, &[]);
        assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
        assert!(ended.out.starts_with("error ") && ended.out.contains("-> "), "{ended:?}");
        assert!(!ended.out.contains("hunter2"), "{ended:?}");
    }
}

#[test]
fn a_user_without_a_home_is_not_sent_to_a_url() {
    let mut command = lockkit();
    command.env_clear().env("HOME", "/dev/null").arg("doctor");
    let ended = Running::start(command).finish();
    assert!(ended.code == 1 && ended.out.contains("-> set LOCKKIT_URL, or HOME"), "{ended:?}");
}

#[test]
fn a_database_that_is_no_place_for_locks_is_an_error() {
    let locks = Locks::new();
    fs::write(locks.path("locks.db"), "a letter, not a database; ".repeat(100)).unwrap();
    let (code, findings) = findings(&locks.url());
    assert_eq!(code, 1);
    assert!(findings.iter().any(|finding| finding["grade"] == "error"), "{findings:?}");
}

/// As whoever connects finds them, and nothing else: no lock is taken to try it out.
#[tokio::test]
async fn an_empty_database_gets_the_tables_and_nothing_more() {
    let locks = Locks::new();
    let options = SqliteConnectOptions::new().filename(locks.path("locks.db"));
    let mut connection = options.create_if_missing(true).connect().await.unwrap();
    assert_eq!(tables(&mut connection).await, [""; 0]);
    assert_eq!(doctor(&locks.url(), &[]).code, 0);
    let made = tables(&mut connection).await;
    assert!(!made.is_empty(), "{made:?}");
    assert!(made.iter().all(|table| table.starts_with("lockkit_")), "{made:?}");
    let rows = "SELECT name FROM lockkit_hold UNION ALL SELECT name FROM lockkit_place";
    assert!(sqlx::query(rows).fetch_all(&mut connection).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_database_with_the_tables_is_not_changed() {
    let locks = Locks::new();
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let options = SqliteConnectOptions::new().filename(locks.path("locks.db"));
    let mut connection = options.connect().await.unwrap();
    let before = commits(&mut connection).await;
    assert_eq!(doctor(&locks.url(), &[]).code, 0);
    assert_eq!(doctor(&locks.url(), &["--json"]).code, 0);
    assert_eq!(commits(&mut connection).await, before);
    // Another's commit is seen, if there is one.
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    assert_ne!(commits(&mut connection).await, before);
}

async fn tables(connection: &mut SqliteConnection) -> Vec<String> {
    let names = sqlx::query("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
    let rows = names.fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A number that is another one after others have changed the database.
async fn commits(connection: &mut SqliteConnection) -> i64 {
    sqlx::query("PRAGMA data_version").fetch_one(connection).await.unwrap().get(0)
}

#[test]
fn a_password_among_the_arguments_is_a_warning() {
    for url in [
        "redis://me:hunter2@127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/main?sentinel_password=hunter2",
    ] {
        let ended = doctor("", &["--url", url]);
        assert_eq!(ended.code, 1);
        assert!(ended.out.contains("LOCKKIT_URL") && !ended.out.contains("hunter2"), "{ended:?}");
    }
}
