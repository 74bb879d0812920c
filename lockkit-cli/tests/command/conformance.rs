use lockkit_conformance::Suite;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Row as _};

use crate::support::{Ended, Locks, Running};

fn conformance(locks: &Locks, arguments: &[&str]) -> Ended {
    Running::start(locks.lockkit("conformance", arguments)).finish()
}

#[test]
fn the_list_has_every_check() {
    let locks = Locks::new();
    let ended = conformance(&locks, &["--list"]);
    assert_eq!((ended.code, &*ended.err), (0, ""));
    let names: Vec<_> = ended.out.lines().filter_map(|line| line.split_once("  ")).collect();
    let all = Suite::checks();
    assert_eq!(names.len(), all.len());
    for ((name, asserts), check) in names.into_iter().zip(all) {
        assert_eq!((name, asserts.trim()), (check.name(), check.asserts()));
    }
    // Nobody was connected to.
    assert!(!locks.path("locks.db").exists());
    let some = conformance(&locks, &["--list", "a_lease_runs_out"]);
    assert_eq!(some.out.lines().count(), 1, "{some:?}");
}

#[tokio::test]
async fn checks_run_and_leave_nothing() {
    let locks = Locks::new();
    let holder = crate::status::hold(&locks, "somebody's");
    let ended = conformance(&locks, &["names"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    let passed = "test sqlite::driver::different_names_are_different_locks";
    assert!(ended.out.contains(passed) && ended.out.contains("0 failed"), "{ended:?}");

    let options = SqliteConnectOptions::new().filename(locks.path("locks.db"));
    let mut connection = options.connect().await.unwrap();
    let rows =
        sqlx::query("SELECT name FROM lockkit_hold UNION ALL SELECT name FROM lockkit_place");
    let rows = rows.fetch_all(&mut connection).await.unwrap();
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["somebody's"]);
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

#[test]
fn the_folders_of_lock_files_are_removed() {
    let locks = Locks::new();
    let folder = locks.path("files");
    std::fs::create_dir(&folder).unwrap();
    let url = format!("file:{}", folder.display());
    let ended = conformance(&locks, &["--url", &url, "apart"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.contains("test file::driver::namespaces_are_apart"), "{ended:?}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

/// As a backend does that is too slow.
#[tokio::test]
async fn a_check_that_fails_is_1() {
    let locks = Locks::new();
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let blocked = locks.block().await;
    let ended = conformance(&locks, &["--ttl", "500ms", "a_free_lock_is_granted"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.out.contains("a_free_lock_is_granted") && ended.out.contains("1 failed"),
        "{ended:?}"
    );
    drop(blocked);
}

#[test]
fn what_cannot_be_checked_is_an_error() {
    let locks = Locks::new();
    for (arguments, code) in [
        (&["no-such-check"][..], 64),
        (&["--list", "no-such-check"], 64),
        (&["--ttl", "soon"], 64),
        (&["--url", "memory:"], 78),
        (&["--url", "redis://127.0.0.1:1"], 69),
    ] {
        let ended = conformance(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (code, ""), "{arguments:?}: {ended:?}");
    }
}
