//! At a terminal, which `script` of util-linux makes.

use std::io::Write as _;
use std::process::Command;
use std::thread::sleep;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{AtTerminal, LIMIT, Locks, Running, eventually, lockkit, state};

/// Starts a shell script under a lock, at a terminal; `None` where there is no `script`.
fn at_a_terminal(locks: &Locks, script: &str) -> Option<Running> {
    with_neighbours(locks, "exec \"$PROGRAM\" run name -- sh -c \"$SCRIPT\"", script)
}

/// Starts at a terminal a shell that starts `lockkit` in its own process group.
fn with_neighbours(locks: &Locks, shell: &str, script: &str) -> Option<Running> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("left out: the program `script` of util-linux is not there");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", shell, "/dev/null"]);
    command.env("PROGRAM", lockkit().get_program()).env("SCRIPT", script);
    command.env("SHELL", "/bin/sh").env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
    Some(Running::start(command))
}

/// The script comes by its traps now and then: one that is just about to read something would not
/// act on a signal before that is there.
/// What it starts may be hit before it ignores the signals, of which a shell tells.
#[test]
fn the_terminals_signals_are_not_sent_twice() {
    let locks = Locks::new();
    let script = "trap 'echo interrupted' INT; trap 'echo marked' USR1; \
                  cut -d ' ' -f 4 /proc/$PPID/stat; \
                  until [ -e opened ]; do (trap '' INT USR1; exec sleep 0.01); done 2>/dev/null; \
                  echo done; exit 7";
    let Some(mut running) = at_a_terminal(&locks, script) else { return };
    let lockkit = number(&running.line().unwrap());
    running.input.write_all(b"\x03").unwrap();
    // The terminal shows what was typed.
    assert_eq!(running.line().as_deref(), Some("^Cinterrupted"));
    // It is passed on after what came before.
    kill_process(lockkit, Signal::USR1).unwrap();
    assert_eq!(running.line().as_deref(), Some("marked"));
    std::fs::write(locks.path("opened"), "").unwrap();
    assert_eq!(running.line().as_deref(), Some("done"));
    assert_eq!(running.finish().code, 7);
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

#[test]
fn the_command_has_the_terminal() {
    let locks = Locks::new();
    // Of /proc: parent, process group, foreground process group of the terminal.
    let script = "stat() { cut -d ' ' -f $1 /proc/$2/stat; }; \
                  stat 5 $$; stat 5 $(stat 4 $PPID); stat 8 $$";
    let Some(running) = at_a_terminal(&locks, script) else { return };
    let ended = running.finish();
    let groups: Vec<_> = ended.out.lines().collect();
    assert!(matches!(groups[..], [a, b, c] if a == b && b == c), "{ended:?}");
}

/// As `sudo` and `ssh` ask for a password: a command that is not in the foreground would be stopped.
#[test]
fn the_command_has_the_terminal_whatever_its_input_is() {
    let locks = Locks::new();
    let shell = "echo nothing | \"$PROGRAM\" run name -- \
                 sh -c 'echo password?; read -r word </dev/tty; echo \"it is $word\"; exit 7'";
    let Some(mut running) = AtTerminal::start(&locks, shell) else { return };
    running.until("it asks", |shown| shown.contains("password?"));
    running.press("secret\n");
    let ended = running.finish();
    assert!(ended.code == 7 && ended.out.contains("it is secret"), "{ended:?}");
}

/// Whoever is there gets it from the terminal, and whoever is still to be started from the others.
#[test]
fn an_interrupt_is_not_lost_at_any_moment() {
    const ROUNDS: u32 = 64;

    let locks = Locks::new();
    let start = |command: &str| {
        let shell = format!("echo go; exec \"$PROGRAM\" run name -- {command}");
        let running = AtTerminal::start(&locks, &shell)?;
        running.until("it begins", |shown| shown.contains("go"));
        Some(running)
    };
    let Some(mut running) = start("sh -c 'echo ready; exec sleep 1000'") else { return };
    let begun = Instant::now();
    running.until("it is there", |shown| shown.contains("ready"));
    let usual = begun.elapsed();
    running.press("\x03");
    assert_eq!(running.finish().code, 130);
    for round in 0..ROUNDS {
        let Some(mut running) = start("sleep 1000") else { return };
        // At each moment of a start in turn.
        sleep(usual * round / ROUNDS);
        running.press("\x03");
        let ended = running.finish();
        assert_eq!(ended.code, 130, "{round}: {ended:?}");
    }
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

#[test]
fn other_signals_are_passed_on() {
    let locks = Locks::new();
    // A shell tells of what it has started and is hit.
    let script = "exec 2>/dev/null; trap 'echo terminated; exit 7' TERM; \
                  cut -d ' ' -f 4 /proc/$PPID/stat; \
                  while :; do (trap '' TERM; exec sleep 0.01); done";
    let Some(running) = at_a_terminal(&locks, script) else { return };
    kill_process(number(&running.line().unwrap()), Signal::TERM).unwrap();
    assert_eq!(running.line().as_deref(), Some("terminated"));
    assert_eq!(running.finish().code, 7);
}

/// As with `ssh -t HOST lockkit ...` when the connection is gone: the kernel tells the leader of the
/// session, and the others when that has ended.
#[test]
fn a_terminal_that_hangs_up_ends_the_command() {
    for shell in [
        "exec \"$PROGRAM\" run name -- sh -c \"$SCRIPT\"",
        // A shell is the leader.
        "\"$PROGRAM\" run name -- sh -c \"$SCRIPT\"; exit",
    ] {
        for (script, in_state) in [
            ("exec sleep 1000", 'S'),
            // What is stopped has to be continued to hear of it.
            ("kill -STOP $$", 'T'),
            // What is no longer in the group at the terminal has to be told.
            ("exec setsid sleep 1000", 'S'),
        ] {
            let locks = Locks::new();
            let gone = locks.watched();
            let script = format!("exec 9>watched; echo $$; {script}");
            let Some(running) = with_neighbours(&locks, shell, &script) else { return };
            let command = running.line().unwrap();
            eventually("it sleeps or is stopped", || state(&command) == Some(in_state));
            // Nobody else has the other end of the terminal.
            running.signal(Signal::KILL);
            gone.recv_timeout(LIMIT).unwrap();
            assert_eq!(locks.finish(&[], "name", "true").code, 0);
        }
    }
}

#[test]
fn an_interrupt_reaches_a_command_that_has_left_the_group() {
    let locks = Locks::new();
    let script = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.01; done";
    let shell = format!("exec \"$PROGRAM\" run name -- setsid sh -c \"{script}\"");
    let Some(mut running) = AtTerminal::start(&locks, &shell) else { return };
    running.until("it runs", |shown| shown.contains("ready"));
    running.press("\x03");
    let ended = running.finish();
    assert_eq!((ended.code, ended.out.matches("interrupted").count()), (7, 1), "{ended:?}");
}

/// Nobody renews the lock meanwhile.
#[test]
fn what_the_terminal_does_not_stop_is_stopped_with_lockkit() {
    let locks = Locks::new();
    let script = "echo $$ >command; read -r _ <gate; exit 7";
    for command in [
        format!("setsid sh -c '{script}'"),
        format!("sh -c 'trap \"\" TSTP; {script}'"),
        // What it has started.
        format!("sh -c 'setsid sh -c \"{}\"; exit $?'", script.replace('$', "\\$")),
    ] {
        let Some(mut running) = AtTerminal::start(&locks, &stoppable(&command)) else { return };
        let command = written(&locks, "command");
        running.press("\x1a");
        running.until("`lockkit` is stopped", |shown| shown.contains("stopped"));
        eventually("the command is stopped", || state(&command) == Some('T'));
        running.press("\n");
        eventually("it goes on", || state(&command).is_some_and(|state| state != 'T'));
        locks.open_gate();
        let ended = running.finish();
        assert!(ended.code == 0 && ended.out.contains("code 7"), "{ended:?}");
        std::fs::remove_file(locks.path("command")).unwrap();
    }
}

/// Whoever reads from the terminal in the background stops its process group, and after `stty tostop`
/// so does whoever writes there.
#[test]
fn what_the_terminal_does_not_stop_is_stopped_in_the_background_too() {
    for (tostop, use_terminal) in [("", "read -r _ <"), ("stty tostop;", "echo here >")] {
        let locks = Locks::new();
        let helper = "echo $$ >$0; read -r _ <gate";
        let script = format!(
            "setsid sh -c '{helper}' left & sh -c 'trap \"\" TTIN TTOU; {helper}' deaf & \
             until [ -s left ] && [ -s deaf ]; do sleep 0.01; done; \
             {use_terminal} /dev/tty; wait; exit 7"
        );
        std::fs::write(locks.path("script"), script).unwrap();
        let shell = format!("{tostop} {}", in_background("\"$PROGRAM\" run name -- sh script"));
        let Some(mut running) = AtTerminal::start(&locks, &shell) else { return };
        let helpers = ["left", "deaf"].map(|file| written(&locks, file));
        for pid in &helpers {
            eventually("it is stopped", || state(pid) == Some('T'));
        }
        // In the foreground it may use the terminal.
        running.press("\n");
        for pid in &helpers {
            eventually("it goes on", || state(pid).is_some_and(|state| state != 'T'));
        }
        helpers.iter().for_each(|_| locks.open_gate());
        running.press("\n");
        let ended = running.finish();
        assert!(ended.code == 0 && ended.out.contains("code 7"), "{ended:?}");
    }
}

/// As in a pipeline, where the command has a process group of its own.
#[test]
fn a_neighbour_that_uses_the_terminal_in_the_background_stops_the_command_with_lockkit() {
    let locks = Locks::new();
    let script = "setsid sh -c 'echo $$ >left; read -r _ <gate' & echo $$ >command; wait; exit 7";
    let neighbour = "until [ -s left ] && [ -s command ]; do sleep 0.01; done; read -r _ </dev/tty";
    for (file, script) in [("script", script), ("neighbour", neighbour)] {
        std::fs::write(locks.path(file), script).unwrap();
    }
    let job = "(\"$PROGRAM\" run name -- sh script </dev/null; echo code $?) | (sh neighbour; cat)";
    let Some(mut running) = AtTerminal::start(&locks, &in_background(job)) else { return };
    let command = ["left", "command"].map(|file| written(&locks, file));
    for pid in &command {
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    running.press("\n");
    for pid in &command {
        eventually("it goes on", || state(pid).is_some_and(|state| state != 'T'));
    }
    locks.open_gate();
    running.press("\n");
    let ended = running.finish();
    assert!(ended.code == 0 && ended.out.contains("code 7"), "{ended:?}");
}

/// One that is stopped before it is done would stop itself when it is continued, and stay so.
#[test]
fn a_program_that_sees_to_ctrl_z_itself_is_not_stopped_meanwhile() {
    // It takes until another one, which ignores the signal, is stopped.
    let script = "(trap '' TSTP; echo >ready; read -r _ <gate) & other=$!; \
                  tidy_up() { \
                  until read -r stat </proc/$other/stat; [ \"$stat\" != \"${stat#*) T }\" ]; do :; done; \
                  echo >tidy; trap - TSTP; kill -TSTP $$; }; \
                  trap tidy_up TSTP; echo $$ >command; wait $other; wait $other; exit 7";
    // It has a second to be done, and a machine under load may take longer; code that stops it too
    // early does so each time.
    for _ in 0..3 {
        let locks = Locks::new();
        std::fs::write(locks.path("script"), script).unwrap();
        let Some(mut running) = AtTerminal::start(&locks, &stoppable("sh script")) else { return };
        let [command, _] = ["command", "ready"].map(|file| written(&locks, file));
        running.press("\x1a");
        running.until("`lockkit` is stopped", |shown| shown.contains("stopped"));
        eventually("the command is stopped", || state(&command) == Some('T'));
        if locks.path("tidy").exists() {
            running.press("\n");
            locks.open_gate();
            let ended = running.finish();
            assert!(ended.out.contains("code 7"), "{ended:?}");
            return;
        }
    }
    panic!("it is stopped before it is done");
}

/// Nobody else would let it go on.
#[test]
fn what_was_stopped_goes_on_when_the_command_has_ended() {
    let locks = Locks::new();
    let script = "setsid sh -c 'echo $$ >helper; read -r _ <gate; echo >done' & \
                  echo $$ >command; wait";
    std::fs::write(locks.path("script"), script).unwrap();
    let Some(mut running) = AtTerminal::start(&locks, &stoppable("sh script")) else { return };
    let [command, helper] = ["command", "helper"].map(|file| written(&locks, file));
    running.press("\x1a");
    running.until("`lockkit` is stopped", |shown| shown.contains("stopped"));
    for pid in [&command, &helper] {
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    kill_process(number(&command), Signal::KILL).unwrap();
    locks.open_gate();
    written(&locks, "done");
    running.press("\n");
    let ended = running.finish();
    assert!(ended.out.contains("code 137"), "{ended:?}");
}

/// The kernel stops nobody there.
#[test]
fn where_nobody_would_continue_it_the_command_is_not_stopped() {
    let locks = Locks::new();
    let script = "trap \"\" TSTP; echo $$ >command; read -r _ <gate; sleep 0.2; exit 7";
    let shell = format!("exec \"$PROGRAM\" run name -- setsid sh -c '{script}'");
    let Some(mut running) = AtTerminal::start(&locks, &shell) else { return };
    written(&locks, "command");
    running.press("\x1a");
    running.until("the terminal has the key", |shown| shown.contains("^Z"));
    locks.open_gate();
    assert_eq!(running.finish().code, 7);
}

/// A terminal stops whoever writes to it from the background, if `stty tostop` has told it to.
#[test]
fn its_own_messages_do_not_stop_lockkit() {
    let locks = Locks::new();
    let shell = "stty tostop; set -m; \
                 \"$PROGRAM\" run -v name -- sh -c 'echo $$ >command; exec sleep 1000' </dev/null & \
                 echo $! >lockkit; wait $!; echo code $?";
    let Some(running) = AtTerminal::start(&locks, shell) else { return };
    let [lockkit, command] = ["lockkit", "command"].map(|file| written(&locks, file));
    running.until("it speaks", |shown| shown.contains("lockkit: "));
    assert!(state(&lockkit).is_some_and(|state| state != 'T'));
    kill_process(number(&command), Signal::TERM).unwrap();
    let ended = running.finish();
    assert!(ended.out.contains("code 143"), "{ended:?}");
    // Nor those of the process that was to become the command.
    let shell = "stty tostop; set -m; \
                 \"$PROGRAM\" run name -- missing </dev/null & wait $!; echo code $?";
    let Some(running) = AtTerminal::start(&locks, shell) else { return };
    let ended = running.finish();
    let is_said = ended.out.contains("`missing` cannot be run");
    assert!(is_said && ended.out.contains("code 127"), "{ended:?}");
}

/// The shell takes it for an interrupt only if `lockkit` was ended by one.
#[test]
fn an_interrupt_ends_a_script() {
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("left out: `bash`, which looks at how a program has ended, is not there");
        return;
    }
    let locks = Locks::new();
    let shell = "exec bash -c '\"$PROGRAM\" run name -- \
                 sh -c \"echo ready; exec sleep 1000\"; echo never'";
    let Some(mut running) = AtTerminal::start(&locks, shell) else { return };
    running.until("it runs", |shown| shown.contains("ready"));
    running.press("\x03");
    let ended = running.finish();
    assert!(ended.code == 130 && !ended.out.contains("never"), "{ended:?}");
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}

#[test]
fn the_command_and_what_it_started_goes_with_lockkit() {
    let locks = Locks::new();
    let script = "cut -d ' ' -f 4 /proc/$PPID/stat; sleep 1000 & echo $!; echo $$; wait";
    let Some(running) = at_a_terminal(&locks, script) else { return };
    let [lockkit, child, command] = [(); 3].map(|()| running.line().unwrap());
    kill_process(number(&lockkit), Signal::KILL).unwrap();
    for pid in [child, command] {
        eventually("it is gone", || state(&pid).is_none());
    }
}

#[tokio::test]
async fn only_the_command_is_ended() {
    let locks = Locks::with_ttl("3s");
    // The shell and the first `sleep` are in the same process group, as in a pipeline.
    let shell = "sleep 1000 & \"$PROGRAM\" run name -- sh -c \"$SCRIPT\"; echo code $?; kill $!";
    let script = "trap '' TERM; echo ready; sh -c 'trap \"\" TERM; sleep 1000'";
    let Some(running) = with_neighbours(&locks, shell, script) else { return };
    assert_eq!(running.line().as_deref(), Some("ready"));
    let blocked = locks.block().await;
    let code = std::iter::from_fn(|| running.line()).find(|line| line.starts_with("code"));
    assert_eq!(code.as_deref(), Some("code 70"));
    // The neighbour was there to be killed.
    assert_eq!(running.finish().code, 0);
    drop(blocked);
}

#[test]
fn waiting_is_one_line_that_is_kept_up_to_date() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let shell = "\"$PROGRAM\" run --wait 5m name -- echo mine";
    let Some(waiting) = AtTerminal::start(&locks, shell) else { return };
    let who = format!(":{} for ", holder.pid);
    waiting.until("it says who holds the lock, and again", |shown| {
        shown.matches(" of 5m, lock `name` held by ").count() >= 2
            && shown.matches(&who).count() >= 2
    });
    let third = locks.start(&["--fair"], "name", "true");
    waiting.until("it says that there is a queue", |shown| {
        shown.contains(" of 5m, 1 in the queue, lock `name` held by ")
    });
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    assert_eq!(third.finish().code, 0);
    let ended = waiting.finish();
    assert_eq!(ended.code, 0);
    // One line, which is erased in the end.
    let (line, rest) = ended.out.rsplit_once("\r\x1b[K").unwrap();
    assert_eq!(rest, "mine\r\n");
    assert!(!line.contains('\n'), "{line:?}");
}

#[test]
fn whoever_gives_up_finds_the_line_empty() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let shell = "trap : INT; \"$PROGRAM\" run name -- true; echo code $?";
    let Some(mut waiting) = AtTerminal::start(&locks, shell) else { return };
    waiting.until("it waits", |shown| shown.contains("waiting "));
    waiting.press("\x03");
    let ended = waiting.finish();
    assert!(ended.out.ends_with("\r\x1b[Kcode 130\r\n"), "{ended:?}");
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

#[tokio::test]
async fn what_happens_meanwhile_stands_above_the_line() {
    let locks = Locks::with_ttl("3s");
    // It is not to lapse while it cannot be renewed either.
    let holder = locks.start(&["--ttl", "60s"], "name", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let shell = "trap : INT; \"$PROGRAM\" run -v --fair name -- true";
    let Some(mut waiting) = AtTerminal::start(&locks, shell) else { return };
    waiting.until("it waits", |shown| shown.contains("1 in the queue"));
    // Nobody can refresh its place.
    let blocked = locks.block().await;
    waiting.until("it says so, on a line of its own", |shown| {
        let Some((before, after)) = shown.split_once("asking again ") else { return false };
        let (_, said) = before.rsplit_once('\r').unwrap_or_default();
        said.starts_with("\x1b[Klockkit: ")
            && !said.contains("queue")
            && after.contains("\r\nlockkit: waiting ")
    });
    drop(blocked);
    waiting.press("\x03");
    assert_eq!(waiting.finish().code, 130);
}

/// Whoever works at the terminal meanwhile is not disturbed.
#[test]
fn in_the_background_nothing_is_kept_up_to_date() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let shell = "set -m; \"$PROGRAM\" run name -- true <&- & wait $!; echo code $?";
    let Some(waiting) = AtTerminal::start(&locks, shell) else { return };
    waiting.until("one line", |shown| shown.contains("for as long as it takes, held by "));
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    let ended = waiting.finish();
    assert!(ended.out.contains("code 0") && !ended.out.contains("\x1b[K"), "{ended:?}");
}

/// Runs a command under a lock for a shell that goes on once that is stopped, and continues it at a
/// key.
fn stoppable(command: &str) -> String {
    format!("set -m; \"$PROGRAM\" run name -- {command}; echo stopped; read -r _; fg; echo code $?")
}

/// Runs a job in the background of a shell, which brings it to the foreground at a key.
fn in_background(job: &str) -> String {
    format!("set -m; {job} & read -r _; fg; echo code $?")
}

/// The line that somebody writes to a file.
fn written(locks: &Locks, file: &str) -> String {
    let mut line = String::new();
    eventually("it is written", || {
        line = std::fs::read_to_string(locks.path(file)).unwrap_or_default();
        line.ends_with('\n')
    });
    line.trim_end().into()
}

fn number(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap()).unwrap()
}
