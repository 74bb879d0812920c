use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Locks, Running, eventually};

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

/// `lockkit` is killed when its warden has last looked for it, and before there is a command.
#[test]
fn a_command_does_not_begin_after_lockkit_has_ended() {
    let locks = Locks::new();
    let (shim, pipe) = (locks.path("held_up.so"), locks.path("pipe"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/held_up.c");
    let mut build = Command::new("cc");
    build.args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(source);
    assert!(build.status().unwrap().success());
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let mut open = File::options();
    open.write(true).custom_flags(OFlags::NONBLOCK.bits().try_into().unwrap());
    // A command that has begun need not come to write before it is killed.
    for round in 0..10 {
        let mut command = locks.run(&[], &round.to_string(), ["echo", "begun"]);
        command.env("LD_PRELOAD", &shim).env("HELD_UP", &pipe);
        let running = Running::start(command);
        let mut held_up = None;
        eventually("the warden waits", || {
            held_up = open.open(&pipe).ok();
            held_up.is_some()
        });
        running.signal(Signal::KILL);
        running.status();
        drop(held_up);
        assert_eq!(running.line(), None);
    }
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
