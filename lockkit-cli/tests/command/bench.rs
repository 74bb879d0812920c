//! `lockkit bench`, with as little as it can be told to do.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use rustix::process::Signal;

use crate::schema::conforming;
use crate::support::{Ended, Locks, Running};

fn bench(locks: &Locks, arguments: &[&str]) -> Ended {
    measured(locks, 1, &[&["--quick"], arguments].concat())
}

fn measured(locks: &Locks, number: u16, arguments: &[&str]) -> Ended {
    let mut command = locks.lockkit("bench", &["--rounds", &number.to_string(), "--seed", "7"]);
    Running::start({
        command.args(arguments);
        command
    })
    .finish()
}

#[test]
fn a_url_is_measured_beside_the_embedded_backends() {
    let locks = Locks::new();
    let mut ended = bench(&locks, &["uncontended"]);
    // In a quarter of a second a machine under load has too few times to tell.
    if !ended.out.contains("P99.9") {
        ended = measured(&locks, 1, &["uncontended"]);
    }
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
    // By the median: in one of them a renewal may be late when it is killed.
    let ended = measured(&locks, 3, &["--quick", "--no-embedded", "recovery"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    let row = ended.out.lines().find(|line| line.contains("sqlite:")).unwrap();
    // The median, such as that of `0.81 (0.72 to 0.95)`.
    let column = row.trim_end().rsplit("  ").next().unwrap();
    let of_the_lease: f64 = column.split(' ').next().unwrap().parse().unwrap();
    assert!(of_the_lease > 0.5, "{ended:?}");
}

#[test]
fn a_signal_ends_it_and_leaves_no_files() {
    let locks = Locks::new();
    let temporary = locks.path("temporary");
    fs::create_dir(&temporary).unwrap();
    let files = || fs::read_dir(&temporary).unwrap().count();
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = locks.lockkit("bench", &["--rounds", "1000", "uncontended", "recovery"]);
        command.env("TMPDIR", &temporary);
        let running = Running::start(command);
        assert!(running.line().is_some_and(|line| line.starts_with("seed ")));
        assert_eq!(files(), 1);
        running.signal(signal);
        let ended = running.finish();
        assert_eq!((ended.signal, &*ended.err), (Some(signal.as_raw()), ""), "{ended:?}");
        assert_eq!(files(), 0);
    }
}

#[test]
fn programs_are_told_in_json() {
    let locks = Locks::new();
    let unreachable = "redis://:hunter2@127.0.0.1:1";
    let ended = bench(&locks, &["--json", "--url", unreachable, "uncontended", "waiters"]);
    assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
    assert!(!ended.out.contains("hunter2"), "{ended:?}");
    let value = conforming(&ended.out, "bench.schema.json");
    assert_eq!((&value["seed"], &value["rounds"]), (&7.into(), &1.into()));
    let workloads = value["workloads"].as_array().unwrap();
    let names: Vec<_> = workloads.iter().map(|workload| &workload["name"]).collect();
    assert_eq!(names, ["uncontended", "waiters"]);
    for workload in workloads {
        let subjects = workload["subjects"].as_array().unwrap();
        assert_eq!(subjects.len(), 5, "{workload}");
        for subject in subjects {
            let is_there = !subject["label"].as_str().unwrap().starts_with("redis:");
            assert_eq!(subject["not_measured"].is_null(), is_there, "{subject}");
            assert_eq!(subject["cases"].as_array().unwrap().is_empty(), !is_there, "{subject}");
        }
    }
    let sqlite = &workloads[0]["subjects"][2];
    assert_eq!(sqlite["label"], "sqlite");
    let p50 = &sqlite["cases"][0]["figures"][0];
    assert_eq!((&p50["name"], &p50["unit"]), (&"p50".into(), &"time".into()));
    let [least, median, most] = ["least", "median", "most"].map(|key| p50[key].as_f64().unwrap());
    assert!(least > 0.0 && [least, median, most].is_sorted() && most < 1.0, "{p50}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let locks = Locks::new();
    let ended =
        bench(&locks, &["--no-embedded", "--url", "redis://:hunter2@127.0.0.1:1", "waiters"]);
    assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
    assert!(ended.out.contains("not measured: "), "{ended:?}");
    assert!(!ended.out.contains("hunter2"), "{ended:?}");
    // Also if nobody can be measured.
    let mut alone = crate::support::lockkit();
    alone.args([
        "bench",
        "--quick",
        "--no-embedded",
        "--url",
        "redis://127.0.0.1:1",
        "uncontended",
    ]);
    let ended = Running::start(alone).finish();
    assert_eq!(ended.code, 1, "{ended:?}");
    let line = ended.out.lines().find(|line| line.contains("redis://127.0.0.1:1"));
    assert!(line.is_some_and(|line| line.contains("not measured: ")), "{ended:?}");
    for (url, reason) in
        [(&b""[..], "LOCKKIT_URL: it is empty"), (b"redis://\xff", "LOCKKIT_URL: it is not UTF-8")]
    {
        let mut wrong = locks.lockkit("bench", &["--quick", "uncontended"]);
        wrong.env("LOCKKIT_URL", OsStr::from_bytes(url));
        let ended = Running::start(wrong).finish();
        assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
        assert!(ended.err.contains(reason), "{ended:?}");
    }
    for (arguments, code) in
        [(&["no-such-workload"][..], 64), (&["--rounds", "0"], 64), (&["--url", "nonsense"], 78)]
    {
        let ended = bench(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (code, ""), "{arguments:?}: {ended:?}");
    }
}
