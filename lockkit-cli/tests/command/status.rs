use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::schema::conforming;
use crate::support::{Ended, Locks, Running, eventually, lockkit, waited_for};

/// `lockkit status` with these arguments, until it ends.
fn status(locks: &Locks, arguments: &[&str]) -> Ended {
    Running::start(locks.lockkit("status", arguments)).finish()
}

/// What `lockkit status --json` says, which conforms to the schema.
pub(crate) fn json(locks: &Locks, arguments: &[&str]) -> Value {
    let ended = status(locks, &[&["--json"], arguments].concat());
    assert!(matches!(ended.code, 0 | 1) && ended.err.is_empty(), "{ended:?}");
    conforming(&ended.out, "status.schema.json")
}

/// Keeps a lock until the gate is opened, or the result dropped.
pub(crate) fn hold(locks: &Locks, name: &str) -> Running {
    let holder = locks.start(&[], name, "echo $LOCKKIT_OWNER; read -r _ <gate");
    assert_eq!(holder.line().map(|owner| owner.len()), Some(32));
    holder
}

#[test]
fn the_code_says_whether_a_lock_is_held() {
    let locks = Locks::new();
    let free = status(&locks, &["name"]);
    assert_eq!((free.code, &*free.err), (0, ""));
    assert!(free.out.contains("nobody"), "{free:?}");
    let holder = hold(&locks, "name");
    let held = status(&locks, &["name"]);
    assert_eq!((held.code, &*held.err), (1, ""));
    assert!(held.out.contains(&format!(":{}", holder.pid)), "{held:?}");
    assert_eq!(status(&locks, &["other"]).code, 0);
    // Without a name it is no question.
    assert_eq!(status(&locks, &[]).code, 0);
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    assert_eq!(status(&locks, &["name"]).code, 0);
}

#[test]
fn the_list_has_every_held_lock_and_no_other() {
    let locks = Locks::new();
    assert!(status(&locks, &[]).out.contains("no lock is held"));
    // The last one would turn the rest of its line around.
    let names = ["a b", "a/b", "鎖", "it's", "z\u{202e}x"];
    let holders = names.map(|name| hold(&locks, name));
    let elsewhere = locks.url() + "&namespace=other";
    let mut other = locks.run(&[], "foreign", ["sh", "-c", "echo ready; read -r _ <gate"]);
    other.env("LOCKKIT_URL", elsewhere);
    let other = Running::start(other);
    assert_eq!(other.line().as_deref(), Some("ready"));

    let seen = json(&locks, &[]);
    let seen: Vec<_> = seen["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
    assert_eq!(seen, ["a b", "a/b", "it's", "z\u{202e}x", "鎖"]);
    let table = status(&locks, &[]).out;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 1 + names.len(), "{table}");
    assert!(lines[0].starts_with("NAME"), "{table}");
    assert!(lines[4].starts_with("z\\u{202e}x "), "{table}");
    for _ in 0..=names.len() {
        locks.open_gate();
    }
    for holder in holders {
        assert_eq!(holder.finish().code, 0);
    }
    assert_eq!(other.finish().code, 0);
}

#[test]
fn holder_and_waiters_are_told() {
    let locks = Locks::new();
    let holder = locks.start(&[], "name", "echo $LOCKKIT_OWNER $LOCKKIT_TOKEN; read -r _ <gate");
    let line = holder.line().unwrap();
    let (owner, token) = line.split_once(' ').unwrap();
    let waiters = [1, 2].map(|number| {
        let waiter = locks.start(&["--fair"], "name", "true");
        waited_for(&locks, &locks.url(), "name", number);
        waiter
    });

    let seen = json(&locks, &["name"]);
    let [lock] = &seen["locks"].as_array().unwrap()[..] else { panic!("{seen}") };
    assert_eq!((&seen["driver"], &seen["namespace"]), (&"sqlite".into(), &"lockkit".into()));
    assert_eq!(
        (&lock["holder"]["owner"], &lock["holder"]["token"]),
        (&owner.into(), &token.into())
    );
    assert!(ends_with_pid(&lock["holder"]["label"], &holder), "{lock}");
    let free_in = lock["holder"]["free_in_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&free_in), "{lock}");
    let places = lock["waiters"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    for (place, waiter) in places.iter().zip(&waiters) {
        assert!(ends_with_pid(&place["label"], waiter), "{lock}");
    }

    let text = status(&locks, &["name"]).out;
    for what in [owner, token, "unless it is renewed", "waiting 1", "waiting 2"] {
        assert!(text.contains(what), "{what}: {text}");
    }
    let table = status(&locks, &[]).out;
    let pids = waiters.each_ref().map(|waiter| waiter.pid.to_string());
    let row = table.lines().nth(1).unwrap();
    assert!(row.contains(&owner[..12]) && row.contains("  2: "), "{table}");
    assert!(row.find(&pids[0]) < row.find(&pids[1]) && row.contains(&pids[0]), "{table}");
    locks.open_gate();
    for process in waiters.into_iter().chain([holder]) {
        assert_eq!(process.finish().code, 0);
    }
}

fn ends_with_pid(label: &Value, process: &Running) -> bool {
    label.as_str().unwrap().ends_with(&format!(":{}", process.pid))
}

#[test]
fn looking_disturbs_nobody() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    let before = json(&locks, &["name"]);
    for arguments in [&[][..], &["name"], &["free"], &["--json"]] {
        status(&locks, arguments);
    }
    let after = json(&locks, &["name"]);
    let who = |seen: &Value| {
        let holder = &seen["locks"][0]["holder"];
        [holder["owner"].clone(), holder["token"].clone()]
    };
    assert_eq!(who(&before), who(&after));
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    assert_eq!(locks.finish(&["--try"], "free", "true").code, 0);
}

#[test]
fn what_cannot_be_looked_at_is_said_as_by_run() {
    for (url, arguments, code) in [
        ("redis://127.0.0.1:1", &[][..], 69),
        ("memory:", &[], 78),
        ("nonsense", &[], 78),
        ("", &[], 78),
        ("sqlite:x.db", &["a\nb"], 64),
        ("sqlite:x.db", &[""], 64),
        ("sqlite:x.db", &["--json", "--watch"], 64),
        ("sqlite:x.db", &["a", "b"], 64),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = lockkit();
        command.current_dir(folder.path()).env("LOCKKIT_URL", url).arg("status").args(arguments);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.out), (code, ""), "{url} {arguments:?}: {ended:?}");
        assert!(ended.err.starts_with("lockkit: "), "{ended:?}");
    }
}

/// `lockkit status | head -1`
#[test]
fn whoever_reads_may_stop() {
    let locks = Locks::new();
    let mut command = locks.lockkit("status", &[]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!((child.wait().unwrap().code(), &*complaint), (Some(0), ""));
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let locks = Locks::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$PROGRAM\" status >/dev/full"]);
    shell.env("PROGRAM", lockkit().get_program()).env("LOCKKIT_URL", locks.url());
    let ended = Running::start(shell).finish();
    assert_eq!(ended.code, 74, "{ended:?}");
    assert!(ended.err.contains("standard output"), "{ended:?}");
}

/// The holder died, and its lease runs out.
#[test]
fn a_dead_holder_is_seen_until_its_lease_ends() {
    let locks = Locks::with_ttl("6s");
    let holder = hold(&locks, "name");
    holder.signal(rustix::process::Signal::KILL);
    assert_eq!(holder.line(), None);
    assert_eq!(status(&locks, &["name"]).code, 1);
    eventually("it is free", || status(&locks, &["name"]).code == 0);
}
