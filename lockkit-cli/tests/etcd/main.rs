//! The command on a real etcd, and on a cluster of three.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{self, ExitCode};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{ETCD, Server, or_skip, run, trial};
use rustix::process::Signal;

use crate::support::{Ended, Locks, Running, count, count_through_outages, waited_for};

mod foreign;
#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

fn main() -> ExitCode {
    let mut trials = vec![
        // Without the limit of a trial: there can be many rounds.
        Trial::ignorable_test("a_plain_file_counts_exactly", || match or_skip(ETCD.url()) {
            Ok(url) => {
                count(&Locks::new(), &url, &unique("counter"));
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        }),
        Trial::ignorable_test("a_killed_leader_does_not_spoil_the_count", leader_killed),
        trial("a_stopped_process_loses_the_lock", || ETCD.start(), stopped),
        trial("a_broken_hold_goes_to_the_next", || ETCD.start(), broken),
        trial("a_full_database_is_seen_by_the_doctor", || ETCD.start(), doctor),
        trial("checks_of_leases_pass", || ETCD.start(), conformance),
        trial("checks_go_by_what_is_granted", || ETCD.start(), short),
    ];
    trials.extend(foreign::trials());
    run(trials)
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

/// The command, but `run`.
fn command(locks: &Locks, url: &str, words: &[&str]) -> Ended {
    let mut command = locks.lockkit(words[0], &words[1..]);
    command.env("LOCKKIT_URL", url);
    Running::start(command).finish()
}

fn leader_killed() -> Result<Completion, libtest_mimic::Failed> {
    let ensemble = match or_skip(ETCD.start_ensemble(3)) {
        Ok(ensemble) => ensemble,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let locks = Locks::new();
    thread::scope(|scope| {
        scope.spawn(|| count_through_outages(&locks, &ensemble.url(), "counter"));
        let counter = locks.path("counter");
        let is_under_way = || {
            let count = std::fs::read_to_string(&counter).unwrap_or_default();
            count.trim().parse::<usize>().is_ok_and(|count| count >= 8)
        };
        while !is_under_way() {
            thread::sleep(Duration::from_millis(5));
        }
        ensemble.members()[ensemble.leader()].kill();
    });
    Ok(Completion::Completed)
}

/// Without a word of how long a lease has to be here.
async fn conformance(server: Server) {
    let locks = Locks::new();
    let check = "a_pushed_grant_lasts_from_the_last_ask";
    let ended = command(&locks, &server.url(), &["conformance", check]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.contains("1 passed"), "{ended:?}");
}

/// The server grants two seconds, the least that it does, where one is asked for.
async fn short(server: Server) {
    let (locks, url) = (Locks::new(), server.url());
    let checks =
        |ttl| command(&locks, &url, &["conformance", "--ttl", ttl, "a_pushed_grant_lasts"]);
    let ended = checks("1s");
    assert!(ended.code == 0 && ended.out.contains("1 passed"), "{ended:?}");
    let ended = checks("900ms");
    assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
    assert!(
        ended.err.contains("900ms is not within 1s to ") && ended.err.contains("etcd"),
        "{ended:?}"
    );
}

async fn stopped(server: Server) {
    let locks = Locks::new();
    let url = server.url();
    let holder = start(&locks, &url, "2s", "stopped", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    holder.signal(Signal::STOP);
    let next = start(&locks, &url, "2s", "stopped", "echo mine");
    assert_eq!(next.line().as_deref(), Some("mine"));
    assert_eq!(next.finish().code, 0);
    holder.signal(Signal::CONT);
    assert_eq!(holder.finish().code, 70, "it says that the lock was lost");
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
    let answer = command(&locks, &url, &["break", "--yes", "--owner", &owner, "broken"]);
    assert!(answer.code == 0 && answer.out.contains("broken: lock"), "{answer:?}");
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
    assert_eq!(holder.finish().code, 70);
}

async fn doctor(server: Server) {
    let (locks, url) = (Locks::new(), server.url());
    let ended = command(&locks, &url, &["doctor"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    let alarm = r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#;
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    let head = "POST /v3/maintenance/alarm HTTP/1.0\r\nContent-Length:";
    write!(stream, "{head} {}\r\n\r\n{alarm}", alarm.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("NOSPACE"), "{answer}");
    let ended = command(&locks, &url, &["doctor"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("the database is full"), "{ended:?}");
}
