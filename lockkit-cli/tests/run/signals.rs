use std::os::unix::process::ExitStatusExt as _;
use std::thread::sleep;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::{Locks, Running, eventually, state};

#[test]
fn signals_reach_the_whole_group_once() {
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let locks = Locks::new();
        let script = format!(
            "trap 'echo parent' {name}; \
             (trap 'echo child; exit' {name}; echo ready; while :; do sleep 0.01; done); exit 7"
        );
        let running = locks.start(&[], "name", &script);
        assert_eq!(running.line().as_deref(), Some("ready"));
        running.signal(signal);
        let ended = running.finish();
        let mut said: Vec<_> = ended.out.lines().collect();
        said.sort_unstable();
        assert_eq!((ended.code, said), (7, vec!["child", "parent"]), "{name}: {ended:?}");
    }
}

#[test]
fn a_signal_that_ends_the_command_is_its_exit_code() {
    let locks = Locks::new();
    let running = locks.start(&[], "name", "echo ready; exec sleep 1000");
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::TERM);
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.complaints()), (143, ""));
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_place() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; exec sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiting = locks.start(&["--fair"], "name", "echo never");
        assert!(waiting.complaint().unwrap().contains("waiting"));
        waiting.signal(signal);
        let ended = waiting.finish();
        assert_eq!((ended.code, &*ended.out), (code, ""), "{ended:?}");
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, 143);
    // A place would be respected by a single try.
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

/// Also while the command is being started, by processes that have to catch it themselves.
#[test]
fn a_signal_is_not_lost_at_any_moment() {
    const ROUNDS: u32 = 64;

    let locks = Locks::new();
    let begun = Instant::now();
    let running = locks.start(&[], "name", "echo ready; exec sleep 1000");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let usual = begun.elapsed();
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, 130);
    for round in 0..ROUNDS {
        let running = Running::start(locks.run(&[], "name", ["sleep", "1000"]));
        // At each moment of a start in turn.
        sleep(usual * round / ROUNDS);
        running.signal(Signal::INT);
        assert_eq!(running.line(), None);
        let status = running.status();
        // At first it ends `lockkit` itself.
        assert!(status.code() == Some(130) || status.signal() == Some(2), "{round}: {status:?}");
    }
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

/// As under `nohup`.
#[test]
fn what_was_ignored_stays_ignored() {
    let locks = Locks::new();
    let script =
        "trap '' HUP; exec \"$0\" run name -- sh -c 'kill -HUP $$; echo alive; read -r _ <gate'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkit")]);
    command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
    let running = Running::start(command);
    assert_eq!(running.line().as_deref(), Some("alive"));
    running.signal(Signal::HUP);
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
}

/// Those that this program needs for itself.
#[test]
fn two_are_as_if_nobody_had_ignored_them() {
    let locks = Locks::new();
    let script = "trap '' HUP PIPE CHLD; exec \"$0\" run name -- grep SigIgn: /proc/self/status";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkit")]);
    command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
    let ended = Running::start(command).finish();
    let mask = ended.out.split_whitespace().nth(1).unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    let is_ignored = |signal: Signal| mask & (1 << (signal.as_raw() - 1)) != 0;
    assert_eq!([Signal::HUP, Signal::PIPE, Signal::CHILD].map(is_ignored), [true, false, false]);
}

#[test]
fn the_command_is_stopped_and_continued_with_lockkit() {
    let locks = Locks::new();
    let running = locks.start(&[], "name", "echo $$; read -r _ <gate; echo done");
    let (lockkit, command) = (running.pid.to_string(), running.line().unwrap());
    running.signal(Signal::TSTP);
    for pid in [&lockkit, &command] {
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    running.signal(Signal::CONT);
    eventually("it goes on", || state(&command).is_some_and(|state| state != 'T'));
    locks.open_gate();
    assert_eq!(running.finish().out, "done\n");
}
