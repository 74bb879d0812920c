//! The command on a real ZooKeeper.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::ExitCode;
use std::{fs, thread};

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{ZOOKEEPER, or_skip, run, trial};

use crate::support::{Locks, Running, count, eventually};

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
                        scope.spawn(|| count(&locks, &ensemble.url(), "counter"));
                        eventually("the middle of it", || {
                            let tokens = fs::read_to_string(locks.path("tokens"));
                            tokens.is_ok_and(|tokens| tokens.lines().count() >= 20)
                        });
                        leader.kill();
                        leader.restart().unwrap();
                    });
                    Ok(Completion::Completed)
                }
                Err(reason) => Ok(Completion::ignored_with(reason)),
            }
        }),
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
