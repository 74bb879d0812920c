//! The examples run, and end well.
#![cfg(all(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::env;
use std::process::Command;

/// Runs an example, which `cargo test` has built beside this test, and returns what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let tests = env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.exists(), "{example:?} is not there: `cargo build --examples` makes it");
    let output = Command::new(example).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {output:?}");
    said
}

#[test]
fn each_job_is_done_once() {
    let said = run("job_once", &[]);
    assert_eq!(said.lines().count(), 10, "{said}");
    let folder = tempfile::tempdir().unwrap();
    let said = run("job_once", &[&format!("sqlite:{}/locks.db", folder.path().display())]);
    assert_eq!(said.lines().count(), 10, "{said}");
}

#[test]
fn a_stale_holder_is_fenced_off() {
    let said = run("fencing", &[]);
    assert!(said.contains("is stale and was refused"), "{said}");
}

#[test]
fn a_service_ends_gracefully() {
    let said = run("graceful_shutdown", &[]);
    assert!(said.starts_with("serving as the leader for another "), "{said}");
    assert!(said.contains("time to end\nthe successor is in"), "{said}");
}

#[test]
fn the_backend_is_chosen_at_run_time() {
    let said = run("choose_backend", &[]);
    assert!(said.contains("memory holds end with the lease"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let said = run("choose_backend", &[&format!("sqlite:{}/locks.db", folder.path().display())]);
    assert!(said.contains("sqlite holds end with the lease"), "{said}");
}
