//! `lockkit run` on a real Redis.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{REDIS, Server, or_skip, run, trial};
use rustix::process::Signal;

use crate::support::{LIMIT, Locks, Running, count};

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

fn main() -> ExitCode {
    run(vec![
        // Without the limit of a trial: there can be many rounds.
        Trial::ignorable_test("a_plain_file_counts_exactly", || match or_skip(REDIS.url()) {
            Ok(url) => {
                count(&Locks::new(), &url, &unique("counter"));
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        }),
        trial("the_command_goes_with_lockkit_and_the_lock_within_the_ttl", || REDIS.url(), killed),
        trial("a_server_that_does_not_answer_ends_the_command", || REDIS.start(), silent),
        trial("a_short_outage_does_not_end_the_command", || REDIS.start(), outage),
        trial("a_wrong_password_is_77", || REDIS.start_with(&["--requirepass", "sesame"]), denied),
    ])
}

/// A name that no other run has on a server that is shared.
fn unique(name: &str) -> String {
    format!("{name}-{}", process::id())
}

fn start(locks: &Locks, url: &str, ttl: &str, name: &str, script: &str) -> Running {
    let mut command = locks.run(&["--ttl", ttl], name, ["sh", "-c", script]);
    command.env("LOCKKIT_URL", url);
    Running::start(command)
}

async fn killed(url: String) {
    let (locks, name) = (Locks::new(), unique("killed"));
    let running = start(&locks, &url, "2s", &name, "sleep 1000 & echo ready; wait; echo never");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let waiting = start(&locks, &url, "2s", &name, "echo mine");
    running.signal(Signal::KILL);
    // Nobody is left who could write: neither the shell nor what it started.
    assert_eq!(running.line(), None);
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
}

async fn silent(server: Server) {
    let locks = Locks::new();
    let gone = locks.watched();
    let script = "exec 9>watched; trap 'echo asked' TERM; echo ready; while :; do sleep 1; done";
    let running = start(&locks, &server.url(), "3s", "silent", script);
    assert_eq!(running.line().as_deref(), Some("ready"));
    server.stop().unwrap();
    let last_renewal = Instant::now();
    let gone = gone.recv_timeout(LIMIT).unwrap();
    // Not a limit of the test: the lease, which the command promises not to outlive.
    assert!(gone - last_renewal < Duration::from_secs(3));
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.out), (70, "asked\n"), "{ended:?}");
    assert!(ended.err.contains("is about to end: killing"), "{ended:?}");
}

async fn outage(server: Server) {
    let locks = Locks::new();
    let running = start(&locks, &server.url(), "9s", "outage", "echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    server.stop().unwrap();
    // The first renewal, at a third of the lease, finds nobody.
    while !running.complaint().unwrap().contains("not renewed") {}
    server.cont().unwrap();
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
}

async fn denied(server: Server) {
    let (locks, url) = (Locks::new(), format!("redis://me:hunter2@{}", server.addr()));
    let ended = start(&locks, &url, "3s", "denied", "echo never").finish();
    assert_eq!((ended.code, &*ended.out), (77, ""), "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
}
