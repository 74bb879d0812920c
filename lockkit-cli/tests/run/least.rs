//! `--at-least`: for jobs that hosts start by clocks that differ.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Locks, Running, eventually};

fn is_free(locks: &Locks) -> bool {
    locks.finish(&["--try"], "name", "true").code == 0
}

#[test]
fn a_lock_is_held_for_the_least_time() {
    // Of a renewal that takes less than the limit nothing is said.
    let locks = Locks::with_ttl("5s&call_limit=3s");
    // Longer than its lease: it is renewed.
    let running = locks.start(&["--at-least", "8s"], "name", "echo done; exit 7");
    assert_eq!(running.line().as_deref(), Some("done"));
    let next = locks.start(&[], "name", "echo mine");
    assert!(next.complaint().unwrap().contains("waiting"));
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.complaints()), (7, ""));
    assert_eq!(next.finish().out, "mine\n");
}

/// Otherwise every run would lose its lock.
#[test]
fn it_is_less_than_the_longest_hold() {
    let locks = Locks::with_ttl("30s&max_hold=1m");
    for least in ["60s", "1h"] {
        let ended = locks.finish(&["--at-least", least], "name", "echo never");
        assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
        assert!(ended.err.contains("not less than the longest hold, which is 1m"), "{ended:?}");
    }
    assert_eq!(locks.finish(&["--at-least", "1ms"], "name", "true").code, 0);
}

#[test]
fn it_is_no_longer_than_the_command() {
    let locks = Locks::new();
    let script = "read -r _ <gate";
    let running = locks.start(&["--at-least", "1ms"], "name", script);
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
    assert!(is_free(&locks));
}

#[test]
fn a_signal_ends_it() {
    let locks = Locks::new();
    let running = locks.start(&["--at-least", "1h"], "name", "echo ready; exec >&- 2>&-; exit 7");
    assert_eq!(running.line().as_deref(), Some("ready"));
    // The command has ended; what is left of the outputs is `lockkit`'s.
    eventually("the command is gone", || children(&running).is_empty());
    assert!(!is_free(&locks));
    running.signal(Signal::TERM);
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.complaints()), (7, ""), "the command's own code");
    assert!(is_free(&locks));
}

/// It was meant for the command.
#[test]
fn a_signal_that_asks_for_something_else_does_not() {
    let locks = Locks::new();
    let running = locks.start(&["--at-least", "1h"], "name", "echo ready; exec >&- 2>&-; exit 7");
    assert_eq!(running.line().as_deref(), Some("ready"));
    eventually("the command is gone", || children(&running).is_empty());
    running.signal(Signal::USR1);
    running.signal(Signal::USR2);
    assert_eq!(locks.finish(&["--wait", "300ms"], "name", "true").code, 75);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 7);
}

#[test]
fn what_a_command_leaves_in_the_background_leaves_no_zombies() {
    let locks = Locks::new();
    let running = locks.start(&["--at-least", "1h"], "name", "{ read -r _ <gate; } & echo $!");
    let left = running.line().unwrap();
    eventually("it is lockkit's child", || children(&running) == left);
    locks.open_gate();
    eventually("it is gone", || children(&running).is_empty());
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 0);
}

/// Whoever stops a job wants it to be over.
#[test]
fn a_command_that_was_told_to_end_frees_the_lock_at_once() {
    let locks = Locks::new();
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let running = locks.start(&["--at-least", "1h"], "name", script);
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 7);
    assert!(is_free(&locks));
}

/// Another host may have the program.
#[test]
fn a_command_that_could_not_be_started_frees_the_lock_at_once() {
    let locks = Locks::new();
    for (program, code) in [("./nowhere", 127), ("./gate", 126)] {
        let running = Running::start(locks.run(&["--at-least", "1h"], "name", [program]));
        assert_eq!(running.finish().code, code);
        assert!(is_free(&locks));
    }
}

/// The command may have heard of it from somebody else.
#[test]
fn a_signal_to_the_command_alone_frees_the_lock_at_once() {
    let locks = Locks::new();
    for (signal, script, code) in [
        (Signal::TERM, "echo $$; exec sleep 1000", 143),
        (Signal::INT, "echo $$; exec sleep 1000", 130),
        (Signal::HUP, "echo $$; exec sleep 1000", 129),
        // Some catch it and say so by their code.
        (Signal::TERM, "trap 'exit 143' TERM; echo $$; while :; do sleep 0.01; done", 143),
    ] {
        let running = locks.start(&["--at-least", "1h"], "name", script);
        let command = running.line().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(command).unwrap(), signal).unwrap();
        let ended = running.finish();
        assert_eq!((ended.code, &*ended.complaints()), (code, ""), "{ended:?}");
        assert!(is_free(&locks));
    }
}

#[test]
fn a_lock_that_is_lost_meanwhile_is_told_of() {
    let locks = Locks::with_ttl("10s");
    let running = locks.start(&["--at-least", "1h"], "name", "echo done");
    assert_eq!(running.line().as_deref(), Some("done"));
    eventually("the command is gone", || children(&running).is_empty());
    let mut breaking = locks.lockkit("break", &["--yes", "name"]);
    assert!(breaking.output().unwrap().status.success());
    let ended = running.finish();
    assert_eq!(ended.code, 70, "{ended:?}");
    assert!(ended.err.contains("lock `name` was lost"), "{ended:?}");
}

/// A renewal after the end of the command says that the lock was held at the end.
#[test]
fn a_lock_that_is_lost_after_a_renewal_leaves_the_code() {
    let locks = Locks::with_ttl("9s");
    let running = locks.start(&["--at-least", "1h"], "name", "echo done; exit 7");
    assert_eq!(running.line().as_deref(), Some("done"));
    eventually("the command is gone", || children(&running).is_empty());
    let first = end_of_lease(&locks);
    eventually("a renewal", || end_of_lease(&locks) > first + 1000);
    let mut breaking = locks.lockkit("break", &["--yes", "name"]);
    assert!(breaking.output().unwrap().status.success());
    let ended = running.finish();
    assert_eq!(ended.code, 7, "{ended:?}");
    assert!(ended.err.contains("the command has run under the lock, but"), "{ended:?}");
}

/// In milliseconds since the grant.
fn end_of_lease(locks: &Locks) -> u64 {
    let seen = locks.lockkit("status", &["--json", "name"]).output().unwrap();
    let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
    let holder = &seen["locks"][0]["holder"];
    ["held_for_ms", "free_in_ms"].iter().map(|field| holder[field].as_u64().unwrap()).sum()
}

fn children(running: &Running) -> String {
    let pid = running.pid;
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path).unwrap().trim().into()
}
