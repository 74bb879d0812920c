//! `file:`, where the lock is that of an open file, which the command inherits.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{Ended, Locks, Running, count, eventually, lockkit, state};

/// The URL of a folder that there is now.
fn url(locks: &Locks) -> String {
    let folder = locks.path("files");
    fs::create_dir_all(&folder).unwrap();
    format!("file:{}", folder.display())
}

fn start(locks: &Locks, options: &[&str], script: &str) -> Running {
    Running::start(command(locks, options, script))
}

fn command(locks: &Locks, options: &[&str], script: &str) -> Command {
    let mut command = locks.run(options, "name", ["sh", "-c", script]);
    command.env("LOCKKIT_URL", url(locks));
    command
}

fn attempt(locks: &Locks) -> Ended {
    start(locks, &["--try"], "echo mine").finish()
}

#[test]
fn a_daemon_keeps_the_lock_until_it_ends() {
    let locks = Locks::new();
    // In a session of its own, with nothing of the terminal's, as daemons are.
    let daemon = "setsid sh -c 'read -r _ <gate' <&- >&- 2>&- & echo $!";
    let first = start(&locks, &[], daemon);
    let daemon = first.line().unwrap();
    assert_eq!(first.finish().code, 0);
    assert_eq!(attempt(&locks).code, 75);
    assert_eq!(look(&locks).code, 1);
    let waiting = start(&locks, &[], "echo mine");
    assert!(waiting.complaint().unwrap().contains("waiting"));
    assert!(state(&daemon).is_some());
    locks.open_gate();
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
    eventually("the daemon has ended", || state(&daemon).is_none());
}

/// What is not noted as released looks like a death, after which tokens skip a second.
#[test]
fn short_runs_leave_the_tokens_with_the_clock() {
    let locks = Locks::new();
    let mut last = 0;
    for _ in 0..20 {
        let token = start(&locks, &[], "echo $LOCKKIT_TOKEN").finish().out;
        let token: u64 = token.trim().parse().unwrap();
        assert!(token > last);
        last = token;
    }
    let time_of_day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = Duration::from_micros(last).saturating_sub(time_of_day);
    assert!(ahead < Duration::from_secs(3), "{ahead:?}");
}

/// The command, but `run`.
fn other(locks: &Locks, words: &[&str]) -> Command {
    let mut command = locks.lockkit(words[0], &words[1..]);
    command.env("LOCKKIT_URL", url(locks));
    command
}

fn look(locks: &Locks) -> Ended {
    Running::start(other(locks, &["status", "name"])).finish()
}

/// The daemon does not learn of it: nobody is left who would tell it.
#[test]
fn a_daemon_can_be_deprived_of_the_lock() {
    let locks = Locks::new();
    let first = start(&locks, &[], "setsid sh -c 'read -r _ <gate' <&- >&- 2>&- & echo $!");
    let daemon = first.line().unwrap();
    let pid = first.pid;
    assert_eq!(first.finish().code, 0);
    let seen = look(&locks);
    assert!(seen.code == 1 && seen.out.contains(&format!(":{pid}")), "{seen:?}");
    assert_eq!(Running::start(other(&locks, &["break", "--yes", "name"])).finish().code, 0);
    assert_eq!(attempt(&locks).code, 0);
    assert!(state(&daemon).is_some());
    locks.open_gate();
    eventually("the daemon has ended", || state(&daemon).is_none());
}

#[test]
fn a_run_does_not_wait_for_itself() {
    let locks = Locks::new();
    let program = lockkit().get_program().to_str().unwrap().to_owned();
    let ended = start(&locks, &[], &format!("{program} run name -- echo never")).finish();
    assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
}

#[test]
fn without_a_daemon_the_lock_ends_with_the_command() {
    let locks = Locks::new();
    assert_eq!(start(&locks, &[], "exit 3").finish().code, 3);
    assert_eq!(attempt(&locks).code, 0);
}

#[test]
fn whoever_closes_the_descriptor_gives_it_up() {
    let locks = Locks::new();
    let closing = "for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval \"exec $fd>&-\"; \
                   done; read -r _ <gate";
    let script = format!("(setsid sh -c '{closing}' <&- >&- 2>&-) & echo done");
    let first = start(&locks, &[], &script);
    assert_eq!(first.finish().code, 0);
    eventually("it is free", || attempt(&locks).code == 0);
    locks.open_gate();
}

/// The kernel sees to it, without a lease that has to run out.
#[test]
fn a_killed_lockkit_leaves_the_lock_free_at_once() {
    let locks = Locks::new();
    let running = start(&locks, &[], "sleep 1000 & echo ready; wait");
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
    assert_eq!(start(&locks, &["--wait", "10s"], "echo mine").finish().code, 0);
}

#[test]
fn a_plain_file_counts_exactly() {
    let locks = Locks::new();
    count(&locks, &url(&locks), "counter");
}
