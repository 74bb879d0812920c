//! The command on a real ZooKeeper.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::ExitCode;
use std::{fs, thread};

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{Server, ZOOKEEPER, or_skip, run, trial};
use rustix::process::Signal;

use crate::support::{
    AtTerminal, Locks, Running, count, count_through_outages, eventually, waited_for,
};

mod foreign;
#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

fn main() -> ExitCode {
    let mut trials = foreign::trials();
    trials.extend([
        // Without the limit of a trial: there can be many rounds.
        Trial::ignorable_test("a_plain_file_counts_exactly", || match or_skip(ZOOKEEPER.start()) {
            Ok(server) => {
                count(&Locks::new(), &server.url(), "counter");
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        }),
        Trial::ignorable_test("a_plain_file_counts_exactly_without_its_leader", || {
            match or_skip(ZOOKEEPER.start_ensemble(3)) {
                Ok(ensemble) => {
                    let leader = &ensemble.members()[ensemble.leader()];
                    let locks = Locks::new();
                    thread::scope(|scope| {
                        scope.spawn(|| count_through_outages(&locks, &ensemble.url(), "counter"));
                        eventually("the middle of it", || {
                            let tokens = fs::read_to_string(locks.path("tokens"));
                            tokens.is_ok_and(|tokens| tokens.lines().count() >= 20)
                        });
                        leader.kill();
                    });
                    Ok(Completion::Completed)
                }
                Err(reason) => Ok(Completion::ignored_with(reason)),
            }
        }),
        trial("a_stopped_process_loses_the_lock", || ZOOKEEPER.start(), stopped),
        trial("a_broken_hold_goes_to_the_next", || ZOOKEEPER.start(), broken),
        trial("a_short_session_is_kept", || ZOOKEEPER.start(), in_a_short_session),
        trial("whoever_is_asked_may_take_their_time", || ZOOKEEPER.start(), asked),
        trial(
            "the_doctor_looks_at_a_server",
            || ZOOKEEPER.start(),
            |server| async move {
                let locks = Locks::new();
                let mut command = locks.lockkit("doctor", &[]);
                command.env("LOCKKIT_URL", server.url());
                let ended = Running::start(command).finish();
                assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
                assert!(ended.out.contains("ensemble") && ended.out.contains("tick"), "{ended:?}");
            },
        ),
    ]);
    run(trials)
}

fn start(locks: &Locks, url: &str, ttl: &str, name: &str, script: &str) -> Running {
    let mut command = locks.run(&[], name, ["sh", "-c", script]);
    command.env("LOCKKIT_URL", format!("{url}?ttl={ttl}"));
    Running::start(command)
}

async fn stopped(server: Server) {
    let locks = Locks::new();
    let holder = outlast(&locks, &server.url());
    holder.signal(Signal::CONT);
    assert_eq!(holder.finish().code, 70, "it says that the lock was lost");
}

/// Returns when a session of 4 seconds has ended, of a process that was stopped after it was begun.
fn outlast(locks: &Locks, url: &str) -> Running {
    let holder = start(locks, url, "4s", "stopped", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    holder.signal(Signal::STOP);
    let next = start(locks, url, "4s", "stopped", "echo mine");
    assert_eq!(next.line().as_deref(), Some("mine"));
    assert_eq!(next.finish().code, 0);
    holder
}

/// Its servers need ticks to prove that a session lives, and three of them are the shortest session.
async fn in_a_short_session(server: Server) {
    fs::write(server.data().join("settings"), "tickTime=2000\n").unwrap();
    server.restart().unwrap();
    let (locks, url) = (Locks::new(), format!("{}?ttl=6s", server.url()));
    for (options, said) in [(&[][..], ""), (&["--grace", "3s"], "and not 3s")] {
        let mut command = locks.run(options, "short", ["sh", "-c", "sleep 7"]);
        command.env("LOCKKIT_URL", &url);
        let ended = Running::start(command).finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.err.contains(said) && said.is_empty() == ended.err.is_empty(), "{ended:?}");
    }
}

async fn asked(server: Server) {
    let (locks, url) = (Locks::new(), server.url());
    let holder = start(&locks, &url, "30s", "asked", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let shell = format!("exec \"$PROGRAM\" break --url '{url}?ttl=4s' asked");
    let Some(mut asking) = AtTerminal::start(&locks, &shell) else { return };
    asking.until("it asks", |shown| shown.contains("[y/N]"));
    // Its session would have ended before this one, which began later.
    let other = outlast(&locks, &url);
    asking.press("y\n");
    let ended = asking.finish();
    assert!(ended.code == 0 && ended.out.contains("broken: lock"), "{ended:?}");
    assert_eq!(holder.finish().code, 70);
    drop(other);
}

async fn broken(server: Server) {
    let (locks, url) = (Locks::new(), server.url());
    let holder = start(&locks, &url, "30s", "broken", "echo $LOCKKIT_OWNER; sleep 1000");
    let owner = holder.line().unwrap();
    let waiting = start(&locks, &url, "30s", "broken", "echo mine");
    let said = waiting.complaint().unwrap();
    assert!(said.contains(&format!(":{}", holder.pid)), "{said}");
    let lock = waited_for(&locks, &url, "broken", 1);
    assert_eq!(lock["holder"]["owner"], owner);
    let mut command = locks.lockkit("break", &["--yes", "--owner", &owner, "broken"]);
    command.env("LOCKKIT_URL", &url);
    let answer = Running::start(command).finish();
    assert!(answer.code == 0 && answer.out.contains("broken: lock"), "{answer:?}");
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
    assert_eq!(holder.finish().code, 70);
}
