//! The examples of `docs/`, as they are, with stand-ins for what they call.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::status::json;
use crate::support::{Locks, Running, eventually, lockkit};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples").join(name)
}

/// A program in the folder `bin` of the test, which [`shell`] finds.
fn program(locks: &Locks, name: &str, script: &str) -> PathBuf {
    let path = locks.path("bin").join(name);
    fs::create_dir_all(locks.path("bin")).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A shell that finds `lockkit` and the programs of the test, as on a host of its own.
fn shell(locks: &Locks, words: &[&str]) -> Running {
    shell_at(locks, Some(&locks.url()), words)
}

/// The same, with this for `LOCKKIT_URL`.
fn shell_at(locks: &Locks, url: Option<&str>, words: &[&str]) -> Running {
    let lockkit = Path::new(lockkit().get_program()).parent().unwrap().to_owned();
    let path = [locks.path("bin"), lockkit, "/usr/bin".into(), "/bin".into()];
    let mut command = Command::new("/bin/sh");
    command.args(words).current_dir(locks.path(""));
    for variable in ["LOCKKIT_NAME", "LOCKKIT_OWNERS", "LOCKKIT_URL"] {
        command.env_remove(variable);
    }
    command.envs(url.map(|url| ("LOCKKIT_URL", url)));
    command.env("PATH", std::env::join_paths(path).unwrap());
    Running::start(command)
}

fn runs(locks: &Locks) -> usize {
    fs::read_to_string(locks.path("ran")).map_or(0, |ran| ran.lines().count())
}

/// The job may have done its work, and not have ended yet.
fn job_is_over(lockkit: &Running) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", lockkit.pid)).unwrap();
    // A thread that has ended meanwhile has no children.
    let children = |task: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
    };
    tasks.map(children).all(|children| children.trim().is_empty())
}

/// Two hosts, whose clocks differ by more than the job takes.
#[test]
fn a_cron_job_runs_on_one_host() {
    let text = fs::read_to_string(example("nightly-report.cron")).unwrap();
    let entries: Vec<_> = text.lines().filter(|line| line.starts_with(['0', '*'])).collect();
    let [entry] = entries[..] else { panic!("{text}") };
    let words: Vec<_> = entry.split_whitespace().collect();
    assert_eq!(words[5], "root");
    assert!(!entry.contains('%'), "cron takes it for the end of a line");
    let job = words[6..].join(" ");
    let url = text.lines().find_map(|line| line.strip_prefix("LOCKKIT_URL=")).unwrap();
    assert!(url.contains("://"), "a file is not for many hosts: {url}");

    let locks = Locks::new();
    program(&locks, "nightly-report", "echo once >>ran");
    let early = shell(&locks, &["-c", &format!("exec {job}")]);
    eventually("the job is done", || runs(&locks) == 1);
    let late = shell(&locks, &["-c", &job]).finish();
    // Else cron would write a mail.
    assert_eq!((late.code, &*late.out, &*late.err), (0, "", ""));
    assert_eq!(runs(&locks), 1);
    // Not for 55 seconds in a test.
    eventually("the job is over", || job_is_over(&early));
    early.signal(Signal::TERM);
    let early = early.finish();
    assert_eq!((early.code, &*early.out, &*early.err), (0, "", ""));

    let next_night = shell(&locks, &["-c", &format!("exec {job}")]);
    eventually("it runs again", || runs(&locks) == 2);
    eventually("the job is over", || job_is_over(&next_night));
    next_night.signal(Signal::TERM);
    assert_eq!(next_night.finish().code, 0);
}

/// Two hosts; the second takes over when the first stops.
#[test]
fn a_service_runs_on_one_host_at_a_time() {
    let unit = fs::read_to_string(example("worker.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let setting = |name| {
        let value = unit.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().parse::<i32>().unwrap()
    };
    let locks = Locks::new();
    let worker = program(
        &locks,
        "worker",
        "trap 'echo done; exit 0' TERM; echo working\n\
                                            while :; do sleep 0.01; done",
    );
    let program = lockkit().get_program().to_str().unwrap().to_owned();
    let worker = worker.to_str().unwrap();
    let start = start.replace("/usr/bin/lockkit", &program).replace("/usr/bin/worker", worker);
    let start = format!("exec {start}");

    let first = shell(&locks, &["-c", &start]);
    assert_eq!(first.line().as_deref(), Some("working"));
    let second = shell(&locks, &["-c", &start]);
    assert!(second.complaint().unwrap().contains("waiting for lock `worker`"));
    // `systemctl stop`, where it waits.
    let third = shell(&locks, &["-c", &start]);
    assert!(third.complaint().unwrap().contains("waiting for lock `worker`"));
    third.signal(Signal::TERM);
    assert_eq!(third.finish().code, setting("SuccessExitStatus="));
    // While there is no backend, systemd is to start it again and again.
    let cut_off = shell_at(&locks, Some("redis://127.0.0.1:1"), &["-c", &start]).finish();
    assert_eq!(cut_off.code, 69, "{cut_off:?}");
    assert!(!unit.contains(" 69") && unit.contains("\nRestart=always\n"), "{unit}");
    assert_eq!(setting("StartLimitIntervalSec="), 0);
    // And where it works.
    first.signal(Signal::TERM);
    assert_eq!(first.line().as_deref(), Some("done"));
    assert_eq!(first.finish().code, 0);
    assert_eq!(second.line().as_deref(), Some("working"));
    second.signal(Signal::TERM);
    assert_eq!(second.finish().code, 0);

    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        eprintln!("left out: the program `systemd-analyze` is not there");
        return;
    };
    assert!(version.status.success());
    // It looks whether the programs are there.
    let unit = unit.replace("/usr/bin/lockkit", &program);
    fs::write(locks.path("worker.service"), unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(locks.path("worker.service"));
    let verdict = verify.output().unwrap();
    let complaints = String::from_utf8(verdict.stderr).unwrap();
    let ours: Vec<_> = complaints.lines().filter(|line| line.contains("worker")).collect();
    assert!(verdict.status.success() && ours.is_empty(), "{complaints}");
}

/// Two people at once.
#[test]
fn deployments_take_turns() {
    let locks = Locks::new();
    let release = "read -r _ <gate; echo \"$*\" >>ran";
    program(&locks, "release", release);
    let script = example("deploy.sh");
    let script = script.to_str().unwrap();
    let alone = shell_at(&locks, None, &[script, "production", "v0"]).finish();
    assert!(alone.code != 0 && alone.err.contains("LOCKKIT_URL"), "{alone:?}");
    let first = shell(&locks, &[script, "production", "v1"]);
    assert!(first.line().unwrap().contains("deploying v1 to production"));
    let second = shell(&locks, &[script, "production", "v2"]);
    assert!(second.complaint().unwrap().contains("waiting for lock `deploy/production`"));
    // Another environment has a lock of its own.
    let other = shell(&locks, &[script, "staging", "v2"]);
    assert!(other.line().unwrap().contains("deploying v2 to staging"));
    let held = json(&locks, &[])["locks"].as_array().unwrap().len();
    assert_eq!(held, 2);

    // Whichever of the two that run comes first; the third only once production is free.
    for _ in 0..3 {
        locks.open_gate();
    }
    for deployment in [first, second, other] {
        let ended = deployment.finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.out.contains("deployed "), "{ended:?}");
    }
    let ran = fs::read_to_string(locks.path("ran")).unwrap();
    let production: Vec<_> = ran.lines().filter(|line| line.contains("production")).collect();
    let [v1, v2] = production[..] else { panic!("{ran}") };
    let token = |line: &str| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    assert!(v1.ends_with("production v1") && v2.ends_with("production v2"), "{ran}");
    assert!(token(v1) < token(v2), "{ran}");
}
