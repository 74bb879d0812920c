//! `etcdctl lock`, and lockkit in its dialect, on one lock.

use std::process::{Command, Stdio};
use std::{env, fs, thread};

use libtest_mimic::{Completion, Failed, Trial};
use lockkit_testkit::{ETCD, Server, or_skip};

use crate::support::{Locks, Running};

/// How many processes of each kind there are.
const PROCESSES: usize = 4;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::ignorable_test("etcdctl_and_lockkit_count_exactly_together", || {
        match or_skip(ETCD.start()).and_then(|server| Ok((server, etcdctl()?))) {
            Ok((server, etcdctl)) => count(&server, etcdctl)?,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        }
        Ok(Completion::Completed)
    })]
}

/// Half of the increments are done by either. Each is by a process of its own.
fn count(server: &Server, etcdctl: &str) -> Result<(), Failed> {
    // It hears up to a tenth of a second late of what it waits for.
    let rounds = env::var("LOCKKIT_TEST_ROUNDS").map_or(Ok(10), |rounds| rounds.parse())?;
    let locks = Locks::new();
    fs::write(locks.path("counter"), "0")?;
    let increment = "set -eC; : >probe; n=$(cat counter); sleep 0.001; echo $((n + 1)) >|counter; \
                     rm probe";
    let url = format!("{}?dialect=etcdctl", server.url());
    let endpoint = server.addr().to_string();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let mut command = Command::new(etcdctl);
                    command.args(["--endpoints", &endpoint, "lock", "lockkit/counter", "--"]);
                    command.args(["sh", "-c", increment]).current_dir(locks.path(""));
                    let ended = command.env("ETCDCTL_API", "3").output().unwrap();
                    assert!(ended.status.success(), "{ended:?}");
                }
            });
            scope.spawn(|| {
                for _ in 0..rounds {
                    let mut command = locks.run(&[], "counter", ["sh", "-c", increment]);
                    command.env("LOCKKIT_URL", &url);
                    let ended = Running::start(command).finish();
                    assert_eq!(ended.code, 0, "{ended:?}");
                }
            });
        }
    });
    let counter = fs::read_to_string(locks.path("counter"))?;
    assert_eq!(counter.trim().parse::<usize>()?, 2 * PROCESSES * rounds);
    Ok(())
}

fn etcdctl() -> Result<&'static str, String> {
    let mut probe = Command::new("etcdctl");
    probe.arg("version").stdout(Stdio::null()).stderr(Stdio::null());
    match probe.status() {
        Ok(status) if status.success() => Ok("etcdctl"),
        _ => Err("no etcdctl: `scripts/test etcd` installs it".into()),
    }
}
