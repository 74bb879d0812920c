//! `lockkit bench`, with as little as it can be told to do.

use crate::support::{Ended, Locks, Running};

fn bench(locks: &Locks, arguments: &[&str]) -> Ended {
    let mut command = locks.lockkit("bench", &["--quick", "--rounds", "1", "--seed", "7"]);
    Running::start({
        command.args(arguments);
        command
    })
    .finish()
}

#[test]
fn a_url_is_measured_beside_the_embedded_backends() {
    let locks = Locks::new();
    let ended = bench(&locks, &["uncontended"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert!(ended.out.starts_with("seed 7, rounds 1, CPUs "), "{ended:?}");
    for label in ["memory", "file", "sqlite", "sqlite:/"] {
        let mut lines = ended.out.lines();
        assert!(lines.any(|line| line.trim_start().starts_with(label)), "{label}: {ended:?}");
    }
    assert!(ended.out.contains("P99.9") && ended.out.contains("µs"), "{ended:?}");
    // Nothing is held when it is over.
    let seen = Running::start(locks.lockkit("status", &[])).finish();
    assert_eq!((seen.code, seen.out.contains("bench-")), (0, false), "{seen:?}");
}

#[test]
fn a_process_that_is_killed_frees_its_lock_within_the_lease() {
    let locks = Locks::new();
    let ended = bench(&locks, &["--no-embedded", "recovery"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    let row = ended.out.lines().find(|line| line.contains("sqlite:")).unwrap();
    let of_the_lease: f64 = row.split_whitespace().next_back().unwrap().parse().unwrap();
    assert!(of_the_lease > 0.5, "{ended:?}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let locks = Locks::new();
    let ended =
        bench(&locks, &["--no-embedded", "--url", "redis://:hunter2@127.0.0.1:1", "waiters"]);
    assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
    assert!(ended.out.contains("not measured: "), "{ended:?}");
    assert!(!ended.out.contains("hunter2"), "{ended:?}");
    for (arguments, code) in
        [(&["no-such-workload"][..], 64), (&["--rounds", "0"], 64), (&["--url", "nonsense"], 78)]
    {
        let ended = bench(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (code, ""), "{arguments:?}: {ended:?}");
    }
}
