use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use lockkit_conformance::Suite;
use rustix::process::Signal;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Row as _};
use tokio::runtime::Builder;

use crate::support::{Ended, Locks, Running, eventually};

/// All checks, on lock files of their own, in a folder that is returned too.
fn on_files(locks: &Locks) -> (Command, PathBuf) {
    let folder = locks.path("files");
    fs::create_dir(&folder).unwrap();
    let url = format!("file:{}", folder.display());
    (locks.lockkit("conformance", &["--url", &url]), folder)
}

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
    fs::create_dir(&folder).unwrap();
    let url = format!("file:{}", folder.display());
    let ended = conformance(&locks, &["--url", &url, "apart"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.contains("test file::driver::namespaces_are_apart"), "{ended:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// Each hold is an open file.
#[test]
fn a_low_limit_of_open_files_is_raised() {
    let locks = Locks::new();
    let (command, folder) = on_files(&locks);
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -Sn 512 && exec \"$@\" a_thousand_names", "bash"]);
    shell.arg(command.get_program()).args(command.get_args());
    let ended = Running::start(shell).finish();
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.contains("1 passed"), "{ended:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn whoever_cannot_be_told_has_nothing_to_clear_up() {
    let locks = Locks::new();
    let (mut closed, folder) = on_files(&locks);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut full = locks.lockkit("conformance", &["--url", &format!("file:{}", folder.display())]);
    let full_output = File::options().write(true).open("/dev/full").unwrap();
    for command in [closed.stdout(writer), full.stdout(full_output)] {
        let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(74), "{err}");
        assert!(err.starts_with("lockkit: standard output: "), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }
}

/// `head` reads the first lines; what is under way by then has left something.
#[test]
fn whoever_has_heard_enough_has_nothing_to_clear_up() {
    let locks = Locks::new();
    let (command, folder) = on_files(&locks);
    let script = "\"$@\" | { read -r _; read -r _; read -r _; }; echo \"${PIPESTATUS[0]}\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "bash"]).arg(command.get_program()).args(command.get_args());
    let ended = Running::start(shell).finish();
    assert_eq!((ended.code, &*ended.out), (0, "74\n"), "{ended:?}");
    assert!(!ended.err.contains("panicked"), "{ended:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_the_checks_and_leaves_nothing() {
    let locks = Locks::new();
    let (command, folder) = on_files(&locks);
    let running = Running::start(command);
    let mut lines = std::iter::from_fn(|| running.line());
    assert!(lines.any(|line| line.starts_with("test file::")));
    running.signal(Signal::INT);
    let ended = running.finish();
    assert_eq!(ended.signal, Some(Signal::INT.as_raw()), "{ended:?}");
    assert!(!ended.out.contains("test result"), "{ended:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// `lockkit conformance` while its only check holds a lock, for half an hour.
fn under_way(locks: &Locks) -> Running {
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let arguments = ["--ttl", "1h", "a_renewal_is_a_full_lease"];
    let running = checking(locks, &arguments);
    eventually("the check holds its lock", || holds(locks) == 1);
    running
}

/// `lockkit conformance` once it has found out that it may take locks.
fn checking(locks: &Locks, arguments: &[&str]) -> Running {
    let running = Running::start(locks.lockkit("conformance", arguments));
    while running.line().unwrap() != "running 1 check" {}
    running
}

/// How many locks are held.
fn holds(locks: &Locks) -> i64 {
    let options = SqliteConnectOptions::new().filename(locks.path("locks.db"));
    let count = async {
        let mut connection = options.connect().await.unwrap();
        let query = sqlx::query("SELECT COUNT(*) FROM lockkit_hold");
        query.fetch_one(&mut connection).await.unwrap().get(0)
    };
    Builder::new_current_thread().enable_all().build().unwrap().block_on(count)
}

#[test]
fn a_second_signal_does_not_wait_for_a_check() {
    let locks = Locks::new();
    let running = under_way(&locks);
    running.signal(Signal::INT);
    assert!(running.complaint().unwrap().contains("no further check is begun"));
    running.signal(Signal::TERM);
    let ended = running.finish();
    assert_eq!(ended.code, 143, "{ended:?}");
    assert!(ended.err.contains("not waited for"), "{ended:?}");
    assert!(!ended.out.contains("test result"), "{ended:?}");
    assert_eq!(holds(&locks), 0);
}

/// The check is at its locks in more namespaces than one when it is no longer waited for.
#[test]
fn a_second_signal_leaves_nothing_in_any_namespace() {
    let locks = Locks::with_ttl("30s&call_limit=30s");
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let at_its_locks = || {
        let running = checking(&locks, &["namespaces_are_apart"]);
        // Until it holds some, or is over.
        _ = (0..100).find(|_| holds(&locks) > 1);
        let blocked = runtime.block_on(locks.block());
        if holds(&locks) > 1 {
            return Some((running, blocked));
        }
        // The check was over before it could be kept from writing.
        drop(blocked);
        assert_eq!(running.finish().code, 0);
        None
    };
    let caught = (0..50).find_map(|_| at_its_locks());
    let (running, blocked) = caught.expect("every check was over too soon");
    running.signal(Signal::INT);
    assert!(running.complaint().unwrap().contains("no further check is begun"));
    running.signal(Signal::TERM);
    assert!(running.complaint().unwrap().contains("not waited for"));
    drop(blocked);
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.err), (143, ""), "{ended:?}");
    assert_eq!(holds(&locks), 0);
}

#[test]
fn a_third_signal_leaves_what_is_there() {
    let locks = Locks::with_ttl("30s&call_limit=30s");
    let running = under_way(&locks);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    // Nothing can be removed from here on.
    let blocked = runtime.block_on(locks.block());
    running.signal(Signal::INT);
    assert!(running.complaint().unwrap().contains("no further check is begun"));
    running.signal(Signal::TERM);
    assert!(running.complaint().unwrap().contains("not waited for"));
    running.signal(Signal::INT);
    let ended = running.finish();
    assert_eq!((ended.code, ended.out.contains("test result")), (130, false), "{ended:?}");
    assert_eq!(ended.err, "lockkit: what the checks have left is not removed\n");
    drop(blocked);
    assert_eq!(holds(&locks), 1);
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
        (&["--ttl", "1ns"], 78),
        (&["--ttl", "25h"], 78),
        (&["--url", "memory:"], 78),
        (&["--url", "redis://127.0.0.1:1"], 69),
    ] {
        let ended = conformance(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (code, ""), "{arguments:?}: {ended:?}");
    }
}
