//! Standard error that nobody reads, as with `2>&1 | less` or after Ctrl-S: nothing can be written
//! there, and a write would last for ever.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::getuid;

use crate::support::{LIMIT, Locks, Running, gone_in_time, lockkit};

/// A standard error that is full, and the end at which it can be read.
fn full() -> (OwnedFd, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    loop {
        match theirs.write(b"more of the same, and nobody wants to see it\n") {
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    theirs.set_nonblocking(false).unwrap();
    (theirs.into(), ours)
}

#[tokio::test]
async fn the_command_ends_before_its_lock_though_nobody_reads() {
    gone_in_time(async || {
        let locks = Locks::with_ttl("3s");
        let gone = locks.watched();
        let script = "exec 9>watched; trap '' TERM; echo ready; \
                      while :; do (trap '' TERM; exec sleep 0.01); done";
        let (error, _unread) = full();
        let running = Running::start_with(locks.run(&[], "name", ["sh", "-c", script]), error);
        assert_eq!(running.line().as_deref(), Some("ready"));
        // No renewal is served from here on, which is worth some messages.
        let blocked = locks.block().await;
        let last_renewal = Instant::now();
        let gone = gone.recv_timeout(LIMIT).unwrap();
        assert_eq!(running.status().code(), Some(70));
        drop(blocked);
        // Not a limit of the test: the lease, which the command promises not to outlive.
        match gone - last_renewal {
            lasted if lasted < Duration::from_secs(3) => Ok(()),
            lasted => Err(format!("{lasted:?}")),
        }
    })
    .await;
}

/// Of that the runtime tells by a panic, which is caught.
#[test]
fn where_there_is_no_thread_lockkit_ends_though_nobody_reads() {
    let locks = Locks::new();
    // It is for a user of no rights, whose threads are counted.
    fs::set_permissions(locks.path(""), Permissions::from_mode(0o777)).unwrap();
    let mut words = vec!["unshare", "--user", "prlimit", "--nproc=2"];
    if getuid().is_root() {
        let user = ["setpriv", "--reuid", "4712", "--regid", "4712", "--clear-groups"];
        words.splice(..0, user);
    }
    let lockkit = |arguments: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(lockkit().get_program()).args(arguments);
        command.env("LOCKKIT_URL", locks.url()).current_dir(locks.path(""));
        command
    };
    if !lockkit(&["--version"]).output().is_ok_and(|ended| ended.status.success()) {
        eprintln!("left out: here nobody limits threads, or not everybody reaches the command");
        return;
    }
    // The second thread is the one that writes to standard error.
    let run = || lockkit(&["run", "name", "--", "true"]);
    let ended = Running::start(run()).finish();
    assert!(ended.code != 0 && ended.err.contains("no thread left"), "{ended:?}");
    assert!(ended.err.lines().all(|line| line.starts_with("lockkit: ")), "{ended:?}");
    let (error, _unread) = full();
    assert_eq!(Running::start_with(run(), error).status().code(), Some(ended.code));
}

/// It is read late, but not too late.
#[test]
fn what_is_said_meanwhile_is_there_once_somebody_reads() {
    let locks = Locks::new();
    let (error, late) = full();
    let script = "exec 2>&-; echo ready; read -r _ <gate; exit 7";
    let command = locks.run(&["--verbose"], "name", ["sh", "-c", script]);
    let running = Running::start_with(command, error);
    assert_eq!(running.line().as_deref(), Some("ready"));
    let mut lines = BufReader::new(late).lines().map(Result::unwrap);
    let acquired = lines.find(|line| line.starts_with("lockkit: "));
    assert!(acquired.is_some(), "nothing was said");
    locks.open_gate();
    assert_eq!(running.status().code(), Some(7));
    // Up to the end: of the release, too.
    let rest: Vec<_> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("released")), "{rest:?}");
}
