use std::fs;

use crate::support::{Locks, count, waited_for};

#[test]
fn the_second_waits_for_the_first() {
    let locks = Locks::new();
    let first = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(first.line().as_deref(), Some("ready"));
    let second = locks.start(&[], "name", "echo second");
    let said = second.complaint().unwrap();
    let what = "lockkit: waiting for lock `name` (sqlite) for as long as it takes, held by ";
    assert!(said.starts_with(what) && said.contains(&format!(":{} for ", first.pid)), "{said}");
    locks.open_gate();
    assert_eq!(first.finish().code, 0);
    let second = second.finish();
    assert_eq!((second.code, &*second.out, &*second.err), (0, "second\n", ""));
}

#[test]
fn the_quiet_say_nothing_of_it() {
    let locks = Locks::new();
    let first = locks.start(&["-q"], "name", "echo ready; read -r _ <gate");
    assert_eq!(first.line().as_deref(), Some("ready"));
    for options in [&["-q", "--try"][..], &["--quiet", "--wait", "700ms"]] {
        let ended = locks.finish(options, "name", "echo never");
        assert_eq!((ended.code, &*ended.out, &*ended.err), (75, "", ""));
    }
    locks.open_gate();
    let first = first.finish();
    assert_eq!((first.code, &*first.err), (0, ""));
    // What is wrong is said all the same.
    let ended = locks.finish(&["-q", "--ttl", "1ms"], "name", "echo never");
    assert!(ended.code == 78 && ended.err.contains("lease"), "{ended:?}");
}

#[test]
fn fair_is_first_come_first_served() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let waiters = [1, 2, 3, 4].map(|number| {
        let script = format!("echo {number} >>order");
        let waiter = locks.start(&["--fair"], "name", &script);
        waited_for(&locks, &locks.url(), "name", number);
        waiter
    });
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 75);
    locks.open_gate();
    for waiter in waiters {
        assert_eq!(waiter.finish().code, 0);
    }
    assert_eq!(fs::read_to_string(locks.path("order")).unwrap(), "1\n2\n3\n4\n");
}

#[test]
fn a_plain_file_counts_exactly() {
    let locks = Locks::new();
    count(&locks, &locks.url(), "counter");
}
