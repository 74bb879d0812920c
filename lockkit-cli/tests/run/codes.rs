use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use crate::support::{Ended, Locks, Running, lockkit};

/// Runs `true` with these options, under these locks.
fn with(options: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lockkit();
    command.current_dir(folder.path()).arg("run").args(options).args(["name", "--", "true"]);
    Running::start(command).finish()
}

#[test]
fn the_code_is_the_commands_own() {
    let locks = Locks::new();
    for (script, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
    {
        let ended = locks.finish(&[], "name", script);
        assert_eq!((ended.code, &*ended.complaints()), (code, ""), "{script}");
    }
}

#[test]
fn taken_is_75_or_what_was_asked_for() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo ready; sleep 1000");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let cases = [
        (&["--try"][..], 75),
        // Longer than a machine under load takes to answer the first ask.
        (&["--wait", "2s"], 75),
        (&["--wait", "0s"], 75),
        (&["--try", "-E", "9"], 9),
        (&["--wait", "2s", "--conflict-exit-code", "0"], 0),
    ];
    let runs = cases.map(|(options, _)| locks.start(options, "name", "echo never"));
    for ((options, code), run) in cases.into_iter().zip(runs) {
        let ended = run.finish();
        assert_eq!((ended.code, &*ended.out), (code, ""), "{options:?}: {ended:?}");
        assert!(ended.complaints().contains("lock `name`"), "{ended:?}");
    }
    assert_eq!(locks.finish(&["--try"], "other", "true").code, 0);
}

#[tokio::test]
async fn unreachable_is_69() {
    let locks = Locks::with_ttl("10s&call_limit=2s");
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let blocked = locks.block().await;
    // Nobody is known to have it: that is not what is quiet, nor what `-E` is for.
    for options in [&["--try"][..], &["--wait", "50ms", "-qE", "0"]] {
        let ended = locks.finish(options, "name", "echo never");
        assert_eq!((ended.code, &*ended.out), (69, ""), "{options:?}: {ended:?}");
        assert!(ended.err.contains("lock `name`"), "{ended:?}");
    }
    drop(blocked);

    let ended = with(&["--url", "redis://127.0.0.1:1"]);
    assert_eq!(ended.code, 69, "{ended:?}");
}

#[test]
fn refused_by_the_backend_is_77() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    // One answer for each request.
                    for _ in bytes[..read].iter().filter(|byte| **byte == b'*') {
                        let refusal = b"-WRONGPASS invalid username-password pair\r\n";
                        stream.write_all(refusal).unwrap();
                    }
                }
            });
        }
    });
    let ended = with(&["--url", &format!("redis://me:hunter2@{address}")]);
    assert_eq!(ended.code, 77, "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
}

/// The option before it was forgotten.
#[test]
fn a_password_in_the_wrong_place_is_not_shown() {
    let locks = Locks::new();
    for arguments in [
        &["doctor", "redis://:hunter2@h"][..],
        &["status", "redis://me:hunter2@h"],
        &["break", "--yes", "redis://me:hunter2@h/0?ttl=1s"],
        &["conformance", "redis://:hunter2@h"],
        &["run", "redis://:hunter2@h", "--", "true"],
        &["run", "--", "redis://:hunter2@h", "--", "true"],
        &["run", "--wait", "redis://:hunter2@h", "name", "--", "true"],
        &["run", "--wait=redis://:hunter2@h", "name", "--", "true"],
        &["run", "-Eredis://:hunter2@h", "name", "--", "true"],
        &["run", "-qEredis://:hunter2@h", "name", "--", "true"],
        &["run", "--wait=redis://:12 hunter2@h", "name", "--", "true"],
        &["doctor", "redis+sentinel://h:x/m?sentinel_password=hunter2"],
        &["doctor", "redis+sentinel://:pw@h/m&sentinel_password=hunter2"],
        &["run", "--wait", "@h", "redis://:hunter2@h", "--", "true"],
        &["doctor", "redis+sentinel://h/m?sentinel_password=hunter2"],
        &["status", "redis+sentinel://h/m?sentinel_password=hunter2"],
        &["status", "redis://me:12?k=hunter2@h"],
    ] {
        let ended = Running::start(locks.lockkit(arguments[0], &arguments[1..])).finish();
        assert_eq!((ended.code, &*ended.out), (64, ""), "{arguments:?}: {ended:?}");
        assert!(!ended.err.contains("hunter2"), "{arguments:?}: {ended:?}");
    }
    for name in [
        "http://h/a:b@c",
        "mail:me@h",
        "ssh://git@h/repository",
        "https://h/a?key=b",
        "https://h/?author=me@h",
    ] {
        let ended = locks.finish(&["--try"], name, "echo ran");
        assert_eq!(&*ended.out, "ran\n", "{name}: {ended:?}");
    }
}

#[test]
fn what_cannot_be_used_is_78() {
    for (options, reason) in [
        (&["--url", "nonsense"][..], "no scheme"),
        (&["--url", "nonsense:x"], "the scheme is unknown"),
        (&["--url", "memory:"], "no other command ever meets them"),
        (&["--url", "sqlite:/nowhere/at/all.db"], "/nowhere/at/all.db"),
        (&["--url", "sqlite:x.db?tll=1s"], "`tll` is unknown"),
        (&["--url", "redis://127.0.0.1:1?ttl=soon"], "`ttl`"),
        (&["--url", "redis://127.0.0.1:1?ttl=0s"], "`ttl`"),
        (&["--url", "redis://127.0.0.1:1?ttl=1000d"], "`ttl`"),
        (&["--url", "redis://127.0.0.1:1?max_hold=0s"], "`max_hold`"),
        (&["--url", "sqlite:x.db", "--ttl", "1ms"], "lease"),
        (&["--url", "sqlite:x.db", "--ttl", "1s", "--grace", "600ms"], "--grace"),
    ] {
        let ended = with(options);
        assert_eq!(ended.code, 78, "{options:?}: {ended:?}");
        assert!(ended.err.starts_with("lockkit: ") && ended.err.contains(reason), "{ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    }
}

#[cfg(not(feature = "etcd"))]
#[test]
fn what_the_command_was_built_without_is_78() {
    for url in ["etcd://127.0.0.1:1", "etcds://me:hunter2@127.0.0.1:1"] {
        let ended = with(&["--url", url]);
        assert!(ended.code == 78 && !ended.err.contains("hunter2"), "{ended:?}");
        assert!(ended.err.contains("this command was built without etcd"), "{ended:?}");
    }
}

/// Otherwise a variable that was not filled in would mean other locks than everybody else's.
#[test]
fn an_empty_url_is_not_the_default() {
    let mut command = lockkit();
    command.env("LOCKKIT_URL", "").args(["run", "name", "--", "true"]);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 78);
    assert!(ended.err.contains("LOCKKIT_URL: it is empty"), "{ended:?}");
}

/// One that is missing, and one in which others have the numbers of this run's own processes.
#[test]
fn a_proc_that_is_not_ours_is_78() {
    let hidden = r#"mount -t tmpfs none /proc && exec "$@""#;
    for container in [
        &["--user", "--map-root-user", "--pid", "--fork"][..],
        &["--user", "--map-root-user", "--mount", "sh", "-c", hidden, "sh"],
    ] {
        let able = Command::new("unshare").args(container).arg("true").output();
        if !able.is_ok_and(|ended| ended.status.success()) {
            eprintln!("left out: here nobody makes a container, by `unshare` of util-linux");
            continue;
        }
        let locks = Locks::new();
        let mut command = Command::new("unshare");
        command.args(container).arg(lockkit().get_program());
        command.args(["run", "name", "--", "echo", "never"]);
        command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
        assert!(ended.err.starts_with("lockkit: /proc: "), "{ended:?}");
        assert!(!locks.path("locks.db").exists(), "it did not begin to lock");
    }
}

/// As a container gets it by `-v ./locks.db:/locks.db`: its log would be the container's.
#[test]
fn a_database_that_is_mounted_without_its_folder_is_78() {
    let alone = r#"mount --bind locks.db locks.db && exec "$@""#;
    let container = ["--user", "--map-root-user", "--mount", "sh", "-c", alone, "sh"];
    let locks = Locks::new();
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(container).args(words);
        command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
        Running::start(command).finish()
    };
    if inside(&["true"]).code != 0 {
        eprintln!("left out: here nobody makes a container, by `unshare` of util-linux");
        return;
    }
    let lockkit = lockkit();
    let lockkit = lockkit.get_program().to_str().unwrap();
    let ended = inside(&[lockkit, "run", "name", "--", "echo", "never"]);
    assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
    assert!(ended.err.contains("mount its folder"), "{ended:?}");
}

#[test]
fn wrong_usage_is_64() {
    for arguments in [
        &[][..],
        &["walk"],
        &["run"],
        &["run", "name"],
        &["run", "name", "true"],
        &["run", "name", "--"],
        &["run", "--", "true"],
        &["run", "--try", "--wait", "1s", "name", "--", "true"],
        &["run", "--ttl", "soon", "name", "--", "true"],
        &["run", "-E", "256", "name", "--", "true"],
        &["run", "--url", "sqlite:x.db", "", "--", "true"],
        &["run", "--url", "sqlite:x.db", "a\nb", "--", "true"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = lockkit();
        command.current_dir(folder.path()).args(arguments);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.out), (64, ""), "{arguments:?}: {ended:?}");
        assert!(ended.err.starts_with("lockkit: "), "{arguments:?}: {ended:?}");
    }
}

/// As for the other commands, behind two dashes.
#[test]
fn a_name_may_look_like_an_option() {
    let locks = Locks::new();
    for name in ["-42", "--try", "name"] {
        let mut command = locks.lockkit("run", &["--try", "--", name, "--"]);
        command.args(["sh", "-c", "echo \"$LOCKKIT_NAME $*\"", "sh", "--", "-x"]);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, ended.out), (0, format!("{name} -- -x\n")), "{}", ended.err);
    }
    // What follows a name is the command, whatever it looks like.
    let command = locks.lockkit("run", &["name", "--", "echo", "--", "-42"]);
    assert_eq!(Running::start(command).finish().out, "-- -42\n");
    for options in [&["--typo", "name", "--", "true"][..], &["--typo", "--", "-42", "--", "true"]] {
        let ended = Running::start(locks.lockkit("run", options)).finish();
        assert_eq!(ended.code, 64, "{ended:?}");
        assert!(ended.err.contains("'--typo'"), "{ended:?}");
    }
}

#[test]
fn help_is_what_was_asked_for() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let mut command = lockkit();
        command.env("LOCKKIT_URL", "redis://:hunter2@h").args(arguments);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.err), (0, ""));
        assert!(ended.out.contains("lock") && !ended.out.contains("hunter2"), "{ended:?}");
    }
}

#[test]
fn help_that_cannot_be_written_is_74() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"], &["man"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = lockkit().args(arguments).stdout(full).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(74), "{arguments:?}: {err}");
        assert!(err.starts_with("lockkit: standard output: "), "{arguments:?}: {err}");
    }
}

#[test]
fn a_command_that_is_not_there_frees_the_lock() {
    let locks = Locks::new();
    std::fs::write(locks.path("no-program"), "").unwrap();
    for (program, code) in [("./no-program", 126), ("./nowhere", 127), ("", 127)] {
        let ended = Running::start(locks.run(&["--try"], "name", [program])).finish();
        assert_eq!(ended.code, code, "{program}: {ended:?}");
        assert!(ended.err.contains(&format!("`{program}` cannot be run")), "{ended:?}");
    }
    let ended = Running::start(locks.run(&[], "name", ["./no\n\u{1b}[31m"])).finish();
    assert!(ended.err.contains(r"`./no\n\u{1b}[31m` cannot be run"), "{ended:?}");
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
}
