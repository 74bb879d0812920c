//! The command on real database servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{self, ExitCode};

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{Backend, MARIADB, POSTGRES, or_skip, run, trial};

use crate::support::{Ended, Locks, Running, count, waited_for};

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

fn main() -> ExitCode {
    let trials = [&POSTGRES, &MARIADB].into_iter().flat_map(|backend: &'static Backend| {
        let named = |name: &str| format!("{}::{name}", backend.id());
        [
            counts(named("a_plain_file_counts_exactly"), backend, ""),
            counts(named("a_plain_file_counts_exactly_by_sessions"), backend, "?hold=session"),
            trial(&named("a_broken_hold_goes_to_the_next"), || backend.url(), broken),
            trial(&named("the_doctor_finds_the_server_sound"), || backend.url(), sound),
            trial(&named("checks_tell_what_they_leave"), || backend.url(), conformance),
            trial(&named("a_wrong_password_is_77"), || backend.url(), denied),
        ]
    });
    run(trials.collect())
}

/// Without the limit of a trial: there can be many rounds.
fn counts(name: String, backend: &'static Backend, parameters: &'static str) -> Trial {
    Trial::ignorable_test(name, move || match or_skip(backend.url()) {
        Ok(url) => {
            count(&Locks::new(), &format!("{url}{parameters}"), &unique("counter"));
            Ok(Completion::Completed)
        }
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}

/// A name that no other run has on a server that is shared.
fn unique(name: &str) -> String {
    format!("{name}-{}", process::id())
}

/// The command, but `run`.
fn command(locks: &Locks, url: &str, words: &[&str]) -> Ended {
    let mut command = locks.lockkit(words[0], &words[1..]);
    command.env("LOCKKIT_URL", url);
    Running::start(command).finish()
}

async fn broken(url: String) {
    let (locks, name) = (Locks::new(), unique("broken"));
    let script = ["sh", "-c", "echo $LOCKKIT_OWNER; sleep 1000"];
    let mut holder = locks.run(&["--ttl", "10s"], &name, script);
    holder.env("LOCKKIT_URL", &url);
    let holder = Running::start(holder);
    let owner = holder.line().unwrap();
    let mut waiting = locks.run(&["--fair"], &name, ["sh", "-c", "echo mine"]);
    waiting.env("LOCKKIT_URL", &url);
    let waiting = Running::start(waiting);
    let said = waiting.complaint().unwrap();
    assert!(said.contains(&format!(":{} for ", holder.pid)), "{said}");
    let lock = waited_for(&locks, &url, &name, 1);
    assert_eq!(lock["holder"]["owner"], owner);
    let list = command(&locks, &url, &["status"]);
    assert!(list.code == 0 && list.out.contains(&format!("{name} ")), "{list:?}");

    let answer = command(&locks, &url, &["break", "--yes", "--owner", &owner, &name]);
    assert!(answer.code == 0 && answer.out.contains("broken: lock"), "{answer:?}");
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
    assert_eq!(holder.finish().code, 70);
    assert_eq!(command(&locks, &url, &["status", &name]).code, 0);
}

async fn sound(url: String) {
    let ended = command(&Locks::new(), &url, &["doctor"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.contains("persistence"), "{ended:?}");
}

async fn conformance(url: String) {
    let ended = command(&Locks::new(), &url, &["conformance", "driver::a_free"]);
    assert!(ended.code == 0 && ended.out.contains("0 failed"), "{ended:?}");
    assert!(ended.err.contains("DELETE FROM lockkit_lock"), "{ended:?}");
}

async fn denied(url: String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, place) = rest.split_once('@').unwrap();
    // A role that the server asks for its password, and one that it does not know.
    let stranger = format!("{scheme}://lockkit_password:hunter2@{place}");
    let ended = command(&Locks::new(), &stranger, &["status"]);
    assert_eq!((ended.code, &*ended.out), (77, ""), "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
}
