use std::fs;

use crate::support::{Locks, count};

#[test]
fn the_second_waits_for_the_first() {
    let locks = Locks::new();
    let first = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(first.line().as_deref(), Some("ready"));
    let second = locks.start(&[], "name", "echo second");
    let said = second.complaint().unwrap();
    assert_eq!(said, "lockkit: waiting for lock `name` (sqlite) for as long as it takes");
    locks.open_gate();
    assert_eq!(first.finish().code, 0);
    let second = second.finish();
    assert_eq!((second.code, &*second.out, &*second.err), (0, "second\n", ""));
}

#[test]
fn fair_is_first_come_first_served() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let waiters = ["1", "2", "3", "4"].map(|number| {
        let script = format!("echo {number} >>order");
        let waiter = locks.start(&["--fair"], "name", &script);
        // It has its place, since it has asked before it says so.
        assert!(waiter.complaint().unwrap().contains("waiting"));
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
