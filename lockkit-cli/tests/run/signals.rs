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
