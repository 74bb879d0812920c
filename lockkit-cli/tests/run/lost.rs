use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, getuid, kill_process_group};

use crate::support::{LIMIT, Locks, Running, gone_in_time};

/// Ends when asked to.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo ready; sleep 1000 & wait";

/// Has to be killed, and so has what it started.
const STUBBORN: &str = "trap 'echo asked' TERM; sh -c 'trap \"\" TERM; sleep 1000' & echo ready; while :; do wait; done";

#[tokio::test]
async fn the_command_is_asked_to_end_before_the_lock_does() {
    // It has a third of that to end, less half a second.
    let locks = Locks::with_ttl("9s");
    // Also if it has left the process group.
    let left = "exec setsid sh -c \"trap 'echo asked; exit 0' TERM; echo ready; \
                while :; do sleep 0.01; done\"";
    let running = [("one", POLITE), ("other", left)].map(|(name, script)| {
        let running = locks.start(&[], name, script);
        assert_eq!(running.line().as_deref(), Some("ready"));
        running
    });
    let blocked = locks.block().await;
    for running in running {
        let ended = running.finish();
        assert_eq!((ended.code, &*ended.out), (70, "asked\n"), "{ended:?}");
        assert!(ended.err.contains("ending the command"), "{ended:?}");
        assert!(!ended.err.contains("killing"), "{ended:?}");
    }
    drop(blocked);
}

#[tokio::test]
async fn a_command_that_does_not_end_is_killed_before_the_lock_ends() {
    gone_in_time(async || {
        let locks = Locks::with_ttl("9s");
        let gone = locks.watched();
        let running = locks.start(&[], "name", &format!("exec 9>watched; {STUBBORN}"));
        assert_eq!(running.line().as_deref(), Some("ready"));
        // No renewal is served from here on.
        let blocked = locks.block().await;
        let last_renewal = Instant::now();
        assert_eq!(running.line().as_deref(), Some("asked"));
        let gone = gone.recv_timeout(LIMIT).unwrap();
        let ended = running.finish();
        assert_eq!(ended.code, 70, "{ended:?}");
        drop(blocked);
        // Not a limit of the test: the lease, which the command promises not to outlive.
        let is_in_time = gone - last_renewal < Duration::from_secs(9);
        match is_in_time && ended.err.contains("is about to end: killing") {
            true => Ok(()),
            false => Err(format!("{:?}: {ended:?}", gone - last_renewal)),
        }
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_taken_away_ends_the_command_at_once() {
    use sqlx::Executor as _;

    let locks = Locks::with_ttl("6s");
    let running = locks.start(&[], "name", STUBBORN);
    assert_eq!(running.line().as_deref(), Some("ready"));
    let mut connection = locks.block().await;
    connection.execute("DELETE FROM lockkit_hold; COMMIT").await.unwrap();
    let ended = running.finish();
    // It was not asked first: somebody else may hold the lock already.
    assert_eq!((ended.code, &*ended.out), (70, ""), "{ended:?}");
    assert!(ended.err.contains("lock `name` is lost"), "{ended:?}");
}

/// Somebody else may have run meanwhile.
#[test]
fn a_lock_that_was_taken_away_is_lost_also_if_the_command_ends_first() {
    // It is not renewed before the command ends.
    let locks = Locks::with_ttl("1h");
    let running = locks.start(&[], "name", "echo ready; read -r _ <gate; exit 7");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let mut breaking = locks.lockkit("break", &["--yes", "name"]);
    assert!(breaking.output().unwrap().status.success());
    assert_eq!(locks.finish(&["--try"], "name", "true").code, 0);
    locks.open_gate();
    let ended = running.finish();
    assert_eq!(ended.code, 70, "{ended:?}");
    assert!(ended.err.contains("the command may not have been alone"), "{ended:?}");
}

/// Such as of `sudo`. After a while it is left.
#[tokio::test]
async fn what_cannot_be_killed_is_told_of() {
    let locks = Locks::with_ttl("6s");
    let Some(running) = start_with_rights(&locks, Command::new("env")) else { return };
    let shell = running.line().unwrap().parse().unwrap();
    assert_eq!(left_when_lost(&locks, &running).await, "2 processes");
    kill_process_group(getpgid(Pid::from_raw(shell)).unwrap(), Signal::KILL).unwrap();
    assert_eq!(running.finish().code, 70);
}

/// The kernel tells that there is a child, if not how many.
#[tokio::test]
async fn what_is_neither_seen_nor_killed_is_told_of() {
    let locks = Locks::with_ttl("6s");
    let mut container = Command::new("unshare");
    container.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    container.args(["mount -o remount,hidepid=2 /proc && exec \"$@\"", "sh"]);
    let Some(running) = start_with_rights(&locks, container) else { return };
    running.line().unwrap();
    assert_eq!(left_when_lost(&locks, &running).await, "1 processes");
    // The rest ends with the first process.
    assert_eq!(running.finish().code, 70);
}

/// Starts a command as a user of no rights, who gains those of root for it and says its process id;
/// `outer` starts what is appended to it. `None` where this cannot be done.
fn start_with_rights(locks: &Locks, outer: Command) -> Option<Running> {
    if !getuid().is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("left out: only root, by `setpriv` of util-linux, can gain and give up rights");
        return None;
    }
    let gain = "cp \"$(command -v setpriv)\" gain && chmod 4755 gain && chmod 777 .";
    let made = Command::new("sh").args(["-c", gain]).current_dir(locks.path("")).status();
    assert!(made.unwrap().success());
    let run = locks.run(&[], "name", ["./gain", "--reuid", "0", "sh", "-c", "echo $$; sleep 1000"]);
    let by_user = |program: &OsStr| {
        let mut command = Command::new(outer.get_program());
        command.args(outer.get_args()).current_dir(locks.path(""));
        command.args(["setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups"]);
        command.arg(program);
        command
    };
    let mut trials = [by_user("./gain".as_ref()), by_user(run.get_program())];
    trials[0].args(["--reuid", "0", "true"]);
    trials[1].arg("--version");
    if !trials.iter_mut().all(|trial| trial.output().is_ok_and(|ended| ended.status.success())) {
        eprintln!("left out: here nobody gains rights, or not everybody reaches the command");
        return None;
    }
    let mut command = by_user(run.get_program());
    command.args(run.get_args()).env("LOCKKIT_URL", locks.url());
    Some(Running::start(command))
}

/// Takes the lock away, and returns what it says cannot be killed.
async fn left_when_lost(locks: &Locks, running: &Running) -> String {
    use sqlx::Executor as _;

    let mut connection = locks.block().await;
    connection.execute("DELETE FROM lockkit_hold; COMMIT").await.unwrap();
    let mut complaints = std::iter::from_fn(|| running.complaint());
    assert!(complaints.any(|line| line.contains("lock `name` is lost")));
    let left = complaints.next().unwrap_or_default();
    let left = left
        .strip_prefix("lockkit: ")
        .and_then(|left| left.strip_suffix(" of the command cannot be killed"));
    left.unwrap_or("nothing").into()
}

#[test]
fn after_a_stop_the_lock_is_looked_at_first() {
    let locks = Locks::with_ttl("2s");
    let running = locks.start(&[], "name", STUBBORN);
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::STOP);
    // The lease is over when somebody else gets the lock.
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    running.signal(Signal::CONT);
    let ended = running.finish();
    assert_eq!((ended.code, &*ended.out), (70, ""), "{ended:?}");
    assert!(ended.err.contains("lock `name` is lost"), "{ended:?}");
}

/// Also if the command has ended by itself meanwhile: it may have run without the lock.
#[test]
fn a_command_that_ended_after_its_lock_is_lost() {
    let locks = Locks::with_ttl("2s");
    let running = locks.start(&[], "name", "echo ready; read -r _ <gate; echo done");
    assert_eq!(running.line().as_deref(), Some("ready"));
    running.signal(Signal::STOP);
    assert_eq!(locks.finish(&[], "name", "true").code, 0);
    locks.open_gate();
    assert_eq!(running.line().as_deref(), Some("done"));
    running.signal(Signal::CONT);
    assert_eq!(running.finish().code, 70);
}

#[test]
fn the_longest_hold_ends_the_command() {
    let locks = Locks::with_ttl("12s&max_hold=6s");
    let ended = locks.finish(&[], "name", POLITE);
    assert_eq!((ended.code, &*ended.out), (70, "ready\nasked\n"), "{ended:?}");
}

/// It is shorter than the usual grace.
#[test]
fn a_short_longest_hold_leaves_time_to_work() {
    let locks = Locks::with_ttl("30s&max_hold=5s");
    let ended = locks.finish(&[], "name", "sleep 0.2; echo done");
    assert_eq!((ended.code, &*ended.out, &*ended.complaints()), (0, "done\n", ""), "{ended:?}");
    let ended = locks.finish(&["--grace", "3s"], "name", "echo never");
    assert_eq!((ended.code, &*ended.out), (78, ""), "{ended:?}");
    assert!(ended.err.contains("half of the longest hold, which is 5s"), "{ended:?}");
}

/// Renewals keep it.
#[test]
fn a_command_may_last_longer_than_the_lease() {
    let locks = Locks::with_ttl("6s&call_limit=3s");
    let ended = locks.finish(&[], "name", "sleep 13.5; echo done");
    assert_eq!((ended.code, &*ended.out, &*ended.complaints()), (0, "done\n", ""), "{ended:?}");
}
