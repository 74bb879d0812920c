use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::{ENDS, Locks, Running, eventually, lockkit, state};

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

/// As with `timeout`, which does so to signal all that it has started.
#[test]
fn signals_reach_a_command_that_has_left_the_group_once() {
    for signal in ENDS {
        let locks = Locks::new();
        let number = signal.as_raw();
        // What it has left in the background, in a session of its own, goes its own way.
        let script = format!(
            "trap 'echo asked' {number}; \
             setsid sh -c \"trap 'echo never' {number}; echo ready; read -r _ <gate\" & \
             until [ -e go ]; do sleep 0.01; done; exit 7"
        );
        let running = Running::start(locks.run(&[], "name", ["setsid", "sh", "-c", &script]));
        assert_eq!(running.line().as_deref(), Some("ready"));
        running.signal(signal);
        assert_eq!(running.line().as_deref(), Some("asked"));
        std::fs::write(locks.path("go"), "").unwrap();
        locks.open_gate();
        let ended = running.finish();
        assert_eq!((ended.code, &*ended.out), (7, ""), "{signal:?}: {ended:?}");
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
        assert_eq!(status.signal(), Some(2), "{round}: {status:?}");
    }
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

/// What the release may leave runs out.
#[tokio::test]
async fn a_signal_ends_a_release_that_has_no_answer() {
    let locks = Locks::with_ttl("10s&call_limit=30s");
    let running = locks.start(&[], "name", "echo $$; read -r _ <gate; exit 7");
    let command = running.line().unwrap();
    let blocked = locks.block().await;
    locks.open_gate();
    eventually("the command has ended", || state(&command).is_none());
    // The first ones may find it before its release.
    let lockkit = running.pid.to_string();
    eventually("it ends", || {
        let lives = state(&lockkit).is_some();
        if lives {
            running.signal(Signal::TERM);
        }
        !lives
    });
    let ended = running.finish();
    assert_eq!(ended.code, 7, "the command's own code: {ended:?}");
    let said = ended.complaints();
    assert!(said.starts_with("lockkit: told to end at once: what became of"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    drop(blocked);
}

/// So that a shell ends its script, too, and does not take it for a program that goes its own way.
#[test]
fn a_signal_that_ends_the_command_ends_lockkit() {
    for signal in ENDS {
        let locks = Locks::new();
        // If there is a core, it is not that of the command.
        let script = "ulimit -c 0; echo ready; exec sleep 1000";
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited; exec \"$0\" run name -- sh -c \"$1\""]);
        command.arg(lockkit().get_program()).arg(script);
        command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
        let running = Running::start(command);
        assert_eq!(running.line().as_deref(), Some("ready"));
        running.signal(signal);
        let status = running.status();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        assert!(!status.core_dumped(), "{status:?}");
        assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
    }
}

#[test]
fn a_signal_that_ends_the_wait_ends_lockkit() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    for signal in ENDS {
        let waiting = locks.start(&[], "name", "echo never");
        assert!(waiting.complaint().unwrap().contains("waiting"));
        waiting.signal(signal);
        let status = waiting.status();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
    }
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

/// To whoever waits for it, such a program goes its own way.
#[test]
fn a_command_that_ends_by_a_code_of_its_own_is_no_end_by_a_signal() {
    let locks = Locks::new();
    let script = "trap 'exit 7' INT; echo ready; while :; do sleep 0.01; done";
    let running = locks.start(&[], "name", script);
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::INT);
    assert_eq!(running.status().code(), Some(7));
    // Nor is the end of a command whose signal `lockkit` knows nothing of.
    let running = locks.start(&[], "name", "kill -INT $$");
    assert_eq!(running.status().code(), Some(130));
}

/// Its own signals do not end the first process of a container.
#[test]
fn the_first_process_ends_with_the_code() {
    let locks = Locks::new();
    let Some(mut command) = in_a_container(&locks) else { return };
    command.arg(lockkit().get_program());
    command.args(["run", "name", "--", "sh", "-c", "kill -INT 1; exec sleep 1000"]);
    let status = Running::start(command).status();
    assert_eq!(status.code(), Some(130), "{status:?}");
}

/// They are handed to it, and nobody else sees to them.
#[test]
fn the_first_process_leaves_no_zombies_while_it_waits() {
    let locks = Locks::new();
    let Some(mut command) = in_a_container(&locks) else { return };
    let holder = locks.start(&[], "name", "echo ready; exec sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    // The parent of this process ends at once.
    let orphan = "(sh -c 'read -r _ <gate' &); exec \"$0\" run name -- true";
    command.args(["sh", "-c", orphan]).arg(lockkit().get_program());
    let waiting = Running::start(command);
    assert!(waiting.complaint().unwrap().contains("waiting"));
    let outside = waiting.pid.to_string();
    assert_eq!(below(&outside).len(), 2, "the first process, and the orphan");
    locks.open_gate();
    eventually("the orphan is gone", || below(&outside).len() == 1);
    holder.signal(Signal::TERM);
    assert_eq!(waiting.finish().code, 0);
}

/// What starts a program as the first process of a container; `None` where nothing does.
fn in_a_container(locks: &Locks) -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
    command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
    let able = Command::new("unshare").args(command.get_args()).arg("true").output();
    if !able.is_ok_and(|ended| ended.status.success()) {
        eprintln!("left out: here nobody makes a container, by `unshare` of util-linux");
        return None;
    }
    Some(command)
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

/// What starts a program with signals blocked; `None` where there is nothing that does.
fn blocking(locks: &Locks) -> Option<Command> {
    let mut command = Command::new("env");
    command.arg("--block-signal=CHLD,CONT,HUP,INT,QUIT,TERM,USR1,USR2,TSTP");
    command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
    let able = Command::new("env").args(command.get_args()).arg("true").output();
    if !able.is_ok_and(|ended| ended.status.success()) {
        eprintln!("left out: it takes the `env` of GNU to block signals");
        return None;
    }
    Some(command)
}

/// As by the thread of a program that leaves signals to another one.
#[test]
fn what_was_blocked_is_heard_of() {
    let locks = Locks::new();
    let start = |words: &[&str]| {
        let mut command = blocking(&locks)?;
        command.arg(lockkit().get_program()).args(words);
        Some(Running::start(command))
    };
    // Of the end of a command, for one.
    let Some(holder) = start(&["run", "name", "--", "sh", "-c", "echo ready; read -r _ <gate"])
    else {
        return;
    };
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let Some(waiting) = start(&["run", "name", "--", "echo", "never"]) else { return };
    assert!(waiting.complaint().unwrap().contains("waiting"));
    waiting.signal(Signal::TERM);
    let ended = waiting.finish();
    assert_eq!((ended.code, &*ended.out), (143, ""), "{ended:?}");
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

/// The warden hears of the end of its parent.
#[test]
fn the_command_goes_with_lockkit_though_signals_were_blocked() {
    let locks = Locks::new();
    let Some(mut command) = blocking(&locks) else { return };
    let script = "sleep 1000 & echo ready; wait; echo never";
    command.arg(lockkit().get_program()).args(["run", "name", "--", "sh", "-c", script]);
    let running = Running::start(command);
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
}

#[test]
fn the_command_finds_blocked_what_was_blocked() {
    let locks = Locks::new();
    let [Some(mut without), Some(mut within)] = [(); 2].map(|()| blocking(&locks)) else { return };
    let look = ["grep", "SigBlk:", "/proc/self/status"];
    without.args(look);
    within.arg(lockkit().get_program()).args(["run", "name", "--"]).args(look);
    let [without, within] = [without, within].map(|command| Running::start(command).finish().out);
    assert_eq!(without, within);
    assert_ne!(without.split_whitespace().nth(1), Some("0000000000000000"));
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
    // Also what has left its process group.
    let script = "echo $$; setsid sh -c 'echo $$; read -r _ <gate'; echo done";
    let running = locks.start(&[], "name", script);
    let lockkit = running.pid.to_string();
    let [command, other] = [(); 2].map(|()| running.line().unwrap());
    running.signal(Signal::TSTP);
    for pid in [&lockkit, &command, &other] {
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    running.signal(Signal::CONT);
    for pid in [&command, &other] {
        eventually("it goes on", || state(pid).is_some_and(|state| state != 'T'));
    }
    locks.open_gate();
    assert_eq!(running.finish().out, "done\n");
}

/// What is started while `lockkit` looks for what has left its process group is not seen at once.
#[test]
fn what_starts_others_all_the_time_is_stopped_with_lockkit() {
    const ROUNDS: u32 = 16;

    let locks = Locks::new();
    let starter = "while :; do sleep 1000 & next=$!; \
                   if [ $last ]; then kill $last; wait $last; fi; last=$next; done";
    std::fs::write(locks.path("starter"), starter).unwrap();
    let script = "for _ in 1 2 3 4; do setsid sh starter & done 2>/dev/null; echo ready; wait";
    let running = locks.start(&[], "name", script);
    assert_eq!(running.line().as_deref(), Some("ready"));
    let lockkit = running.pid.to_string();
    for _ in 0..ROUNDS {
        running.signal(Signal::TSTP);
        eventually("it is stopped", || state(&lockkit) == Some('T'));
        eventually("the command is stopped", || {
            below(&lockkit).iter().all(|pid| matches!(state(pid), Some('T') | None))
        });
        running.signal(Signal::CONT);
        eventually("it goes on", || below(&lockkit).iter().any(|pid| state(pid) == Some('S')));
    }
    // All of it.
    running.signal(Signal::KILL);
    assert_eq!(running.line(), None);
}

/// The processes that were started below one.
fn below(pid: &str) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().flat_map(|pid| [vec![pid.into()], below(pid)].concat()).collect()
}
