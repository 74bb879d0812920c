use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Locks, Running};

/// Leaves the work to a child that would go on, and prints the process id of the warden.
const SCRIPT: &str = "sleep 1000 & echo $PPID; wait; echo never";

fn warden(running: &Running) -> Pid {
    let line = running.line().unwrap();
    Pid::from_raw(line.parse().unwrap()).unwrap()
}

#[test]
fn the_command_goes_with_lockkit_and_the_lock_within_the_ttl() {
    let locks = Locks::with_ttl("2s");
    let running = locks.start(&[], "name", SCRIPT);
    warden(&running);
    let waiting = locks.start(&[], "name", "echo mine");
    running.signal(Signal::KILL);
    // Nobody is left who could write: neither the shell nor what it started.
    assert_eq!(running.line(), None);
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
}

/// As after Ctrl-Z.
#[test]
fn a_stopped_command_goes_with_lockkit() {
    let locks = Locks::new();
    let running = locks.start(&[], "name", SCRIPT);
    let warden = warden(&running);
    rustix::process::kill_process_group(warden, Signal::STOP).unwrap();
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
}

#[test]
fn the_command_goes_with_its_warden() {
    let locks = Locks::new();
    let running = locks.start(&[], "name", SCRIPT);
    kill_process(warden(&running), Signal::KILL).unwrap();
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.out), (137, ""));
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

/// What the parent-death signal of the command is for; it does not reach further.
#[test]
fn the_command_goes_with_both() {
    let locks = Locks::new();
    let running = locks.start(&[], "name", "echo $PPID; exec sleep 1000");
    let warden = warden(&running);
    // Stopped, so that it cannot do its work in between.
    kill_process(warden, Signal::STOP).unwrap();
    kill_process(warden, Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
}

#[test]
fn a_command_in_a_session_of_its_own_goes_too() {
    let locks = Locks::new();
    let script = "export W=$PPID; setsid sh -c 'sleep 1000 & echo $W; wait; echo never' & wait";
    let running = locks.start(&[], "name", script);
    warden(&running);
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
}
