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

/// What an example shows of the file with the URL, for this one.
fn variable(example: &str, url: &str) -> String {
    let shown = example.lines().find_map(|line| line.strip_prefix("# LOCKKIT_URL='"));
    let (shown, _) = shown.unwrap().split_once('\'').unwrap();
    assert!([shown, url].iter().all(|url| url.contains('&')), "{shown} {url}");
    format!("LOCKKIT_URL='{url}'\n")
}

/// The one entry of a crontab, without when and as whom it is run.
fn job(crontab: &str) -> String {
    let entries: Vec<_> = crontab.lines().filter(|line| line.starts_with(['0', '*'])).collect();
    let [entry] = entries[..] else { panic!("{crontab}") };
    let words: Vec<_> = entry.split_whitespace().collect();
    assert_eq!(words[5], "root");
    assert!(!entry.contains('%'), "cron takes it for the end of a line");
    words[6..].join(" ")
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
    let job = job(&text);
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

/// With the URL in a file. Whatever is wrong with that, no job runs under a lock of its host's own.
#[test]
fn a_cron_job_has_its_url_from_a_file() {
    let text = fs::read_to_string(example("nightly-report.cron")).unwrap();
    let command =
        text.lines().find_map(|line| line.strip_prefix("# . /etc/lockkit-reports.env && "));
    let export = command.unwrap().strip_suffix("lockkit run ...").unwrap();
    assert!(!export.contains('%'), "cron takes it for the end of a line");
    let locks = Locks::new();
    let file = locks.path("lockkit.env");
    let command = format!(". {} && {export}exec {}", file.display(), job(&text));
    program(&locks, "nightly-report", "echo \"$LOCKKIT_URL\" >>ran");
    let url = format!("{}&namespace=reports", locks.url());

    for wrong in ["", "LOCKKIT_URL=\n", &format!("LOCKKIT_URL={url}\n")] {
        fs::write(&file, wrong).unwrap();
        let refused = shell_at(&locks, None, &["-c", &command]).finish();
        assert!(refused.code != 0 && refused.err.contains("is missing"), "{wrong}: {refused:?}");
        assert_eq!(runs(&locks), 0, "{wrong}");
    }
    fs::remove_file(&file).unwrap();
    let refused = shell_at(&locks, None, &["-c", &command]).finish();
    assert!(refused.code != 0 && runs(&locks) == 0, "{refused:?}");

    fs::write(&file, variable(&text, &url)).unwrap();
    let night = shell_at(&locks, None, &["-c", &command]);
    eventually("the job is done", || runs(&locks) == 1);
    assert_eq!(fs::read_to_string(locks.path("ran")).unwrap().trim_end(), url);
    eventually("the job is over", || job_is_over(&night));
    night.signal(Signal::TERM);
    assert_eq!(night.finish().code, 0);
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
    let installed = "/usr/local/bin/lockkit";
    assert!(start.starts_with(installed), "{start}");
    let start = start.replace(installed, &program).replace("/usr/bin/worker", worker);
    let start = format!("exec {start}");

    let first = shell(&locks, &["-c", &start]);
    assert_eq!(first.line().as_deref(), Some("working"));
    let second = shell(&locks, &["-c", &start]);
    assert!(second.complaint().unwrap().contains("waiting for lock `worker`"));
    // `systemctl stop`, where it waits; by a shell that reads systemd's file.
    let file = locks.path("lockkit.env");
    fs::write(&file, variable(&unit, &format!("{}&label=third", locks.url()))).unwrap();
    let read = format!(". {} && export LOCKKIT_URL && {start}", file.display());
    let third = shell_at(&locks, None, &["-c", &read]);
    assert!(third.complaint().unwrap().contains("waiting for lock `worker`"));
    third.signal(Signal::TERM);
    assert_eq!(third.finish().code, setting("SuccessExitStatus="));
    // While there is no backend, systemd is to start it again and again; after wrong usage, and nothing
    // else, it is not.
    let cut_off = shell_at(&locks, Some("redis://127.0.0.1:1"), &["-c", &start]).finish();
    assert_eq!(cut_off.code, 69, "{cut_off:?}");
    let misused = shell(&locks, &["-c", "exec lockkit run worker"]).finish();
    assert_eq!(misused.code, setting("RestartPreventExitStatus="), "{misused:?}");
    assert!(unit.contains("\nRestart=always\n"), "{unit}");
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
    let unit = unit.replace(installed, &program);
    fs::write(locks.path("worker.service"), unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(locks.path("worker.service"));
    let verdict = verify.output().unwrap();
    let complaints = String::from_utf8(verdict.stderr).unwrap();
    let ours: Vec<_> = complaints.lines().filter(|line| line.contains("worker")).collect();
    assert!(verdict.status.success() && ours.is_empty(), "{complaints}");
}

/// Two people at once, with a copy of the script that is not executable and is in no `PATH`.
#[test]
fn deployments_take_turns() {
    let locks = Locks::new();
    let release = "read -r _ <gate; echo \"$*\" >>ran";
    program(&locks, "release", release);
    let script = "deploy.sh";
    fs::copy(example(script), locks.path(script)).unwrap();
    fs::set_permissions(locks.path(script), fs::Permissions::from_mode(0o644)).unwrap();
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
