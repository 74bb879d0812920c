use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::support::{Locks, Running, lockkit};

#[test]
fn the_command_is_told_about_its_lock() {
    let locks = Locks::new();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let show =
            "echo $LOCKKIT_NAME; echo $LOCKKIT_DRIVER; echo $LOCKKIT_OWNER; echo $LOCKKIT_TOKEN";
        let mut command = locks.run(&[], "a name", ["sh", "-c", show]);
        for variable in ["LOCKKIT_NAME", "LOCKKIT_DRIVER", "LOCKKIT_OWNER", "LOCKKIT_TOKEN"] {
            command.env(variable, "inherited");
        }
        let ended = Running::start(command).finish();
        let [name, driver, owner, token] = ended.out.lines().collect::<Vec<_>>()[..] else {
            panic!("{ended:?}");
        };
        assert_eq!((name, driver, owner.len()), ("a name", "sqlite", 32));
        tokens.push(token.parse::<u64>().unwrap());
    }
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
}

#[test]
fn input_and_arguments_pass_as_they_are() {
    let locks = Locks::new();
    let word = OsStr::from_bytes(b"not \xff UTF-8");
    let script = "cat; printf '%s|' \"$@\"";
    let words =
        [OsStr::new("sh"), "-c".as_ref(), script.as_ref(), "sh".as_ref(), word, "--try".as_ref()];
    let mut command = locks.run(&[], "name", words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"input\0\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"input\0\nnot \xff UTF-8|--try|");
}

#[test]
fn without_a_url_the_locks_are_the_users_own() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("a state % home");
    for (variable, value, folder) in [
        ("XDG_STATE_HOME", state.as_os_str(), state.join("lockkit")),
        ("XDG_STATE_HOME", "relative".as_ref(), home.path().join(".local/state/lockkit")),
    ] {
        let mut command = lockkit();
        command.env("HOME", home.path()).env(variable, value);
        command.args(["run", "name", "--", "sh", "-c", "echo $LOCKKIT_DRIVER"]);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.out), (0, "sqlite\n"), "{ended:?}");
        assert!(folder.join("locks.db").is_file());
        let mode = fs::metadata(folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn nobody_has_to_listen() {
    let locks = Locks::new();
    let script = "exec \"$0\" run --try name -- sh -c 'exit 5' 2>&-";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkit")]).env("LOCKKIT_URL", locks.url());
    assert_eq!(Running::start(command).finish().code, 5);

    let holder = locks.start(&[], "name", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkit")]).env("LOCKKIT_URL", locks.url());
    assert_eq!(Running::start(command).finish().code, 75);
}

/// As with `( command & )` under any other program.
#[test]
fn what_the_command_leaves_behind_is_on_its_own() {
    let locks = Locks::new();
    let script = "sh -c 'read -r _ <gate; echo later' & echo now";
    let running = locks.start(&[], "name", script);
    assert_eq!(running.line().as_deref(), Some("now"));
    assert!(running.status().success());
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
    locks.open_gate();
    assert_eq!(running.line().as_deref(), Some("later"));
}
