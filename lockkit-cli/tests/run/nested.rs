//! A run inside a run.

use std::time::Instant;

use rustix::process::Signal;

use crate::support::{LIMIT, Locks, eventually, lockkit, state};

/// What runs the program again, as a script does that does not know what it is part of.
fn again(arguments: &str) -> String {
    format!("{} run {arguments}", lockkit().get_program().to_str().unwrap())
}

#[test]
fn a_run_does_not_wait_for_itself() {
    let locks = Locks::new();
    let begun = Instant::now();
    for inner in [
        again("name -- echo never"),
        again("--wait 1h name -- echo never"),
        again("--fair name -- echo never"),
        // Also from further inside.
        again(&format!("other -- {}", again("name -- echo never"))),
    ] {
        let ended = locks.finish(&[], "name", &inner);
        assert_eq!((ended.code, &*ended.out), (78, ""), "{inner}: {ended:?}");
        let reason = "lock `name`: it is held by the `lockkit run` that this one is part of";
        assert!(ended.err.contains(reason), "{ended:?}");
    }
    // Not after an hour.
    assert!(begun.elapsed() < LIMIT);
}

#[test]
fn whoever_does_not_wait_is_told_as_ever() {
    let locks = Locks::new();
    let ended = locks.finish(&[], "name", &again("--try name -- echo never"));
    assert_eq!((ended.code, &*ended.out), (75, ""), "{ended:?}");
}

#[test]
fn other_locks_may_be_taken_inside() {
    let locks = Locks::new();
    let elsewhere = format!("--url '{}&namespace=other'", locks.url());
    for inner in [again("other -- echo inner"), again(&format!("{elsewhere} name -- echo inner"))] {
        let ended = locks.finish(&[], "name", &inner);
        assert_eq!((ended.code, &*ended.out), (0, "inner\n"), "{inner}: {ended:?}");
        assert_eq!(ended.complaints(), "", "{inner}");
    }
}

/// What works under both has two gates to pass.
#[test]
fn the_tokens_of_the_runs_around_are_told() {
    let locks = Locks::new();
    let inner = again("other -- sh -c 'echo $LOCKKIT_TOKEN; echo $LOCKKIT_TOKENS'");
    let ended = locks.finish(&[], "name", &format!("echo $LOCKKIT_TOKENS; {inner}"));
    let lines: Vec<_> = ended.out.lines().collect();
    let [outer, inner, both] = lines[..] else { panic!("{ended:?}") };
    assert!(!outer.is_empty() && !inner.is_empty(), "{ended:?}");
    assert_eq!(both, format!("{inner} {outer}"));
}

/// It is in a process group of its own.
#[test]
fn a_run_inside_is_stopped_and_continued_with_lockkit() {
    let locks = Locks::new();
    let inner = again("inner -- sh -c 'echo $$; echo $PPID; read -r _ <gate; echo done'");
    let running = locks.start(&[], "outer", &inner);
    let [command, warden] = [(); 2].map(|()| running.line().unwrap());
    running.signal(Signal::TSTP);
    for pid in [&running.pid.to_string(), &command, &warden] {
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    running.signal(Signal::CONT);
    for pid in [&command, &warden] {
        eventually("it goes on", || state(pid).is_some_and(|state| state != 'T'));
    }
    locks.open_gate();
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.out), (0, "done\n"), "{ended:?}");
}

/// What a run has left in the background is part of it no longer.
#[test]
fn what_outlives_a_run_waits_like_everybody_else() {
    let locks = Locks::new();
    let again = again("name -- echo later");
    let later = format!("(until [ -e go ]; do sleep 0.01; done; exec {again}) &");
    let first = locks.start(&[], "name", &later);
    assert_eq!(first.status().code(), Some(0));
    let second = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(second.line().as_deref(), Some("ready"));
    std::fs::write(locks.path("go"), "").unwrap();
    assert!(first.complaint().unwrap().contains("waiting for lock `name`"));
    locks.open_gate();
    assert_eq!(second.finish().code, 0);
    assert_eq!(first.line().as_deref(), Some("later"));
}
