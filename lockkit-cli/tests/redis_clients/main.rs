//! Other libraries' clients of Redis, and lockkit in the dialect that they share, on one lock. Apart from
//! the other tests, since so many processes would be in the way of their leases.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, thread};

use libtest_mimic::{Completion, Failed, Trial};
use lockkit_testkit::{REDIS, Server, or_skip, run};

use crate::support::{Locks, Running};

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

/// How many processes of each kind there are.
const PROCESSES: usize = 4;

fn main() -> ExitCode {
    run(vec![
        trial("redis_py_and_lockkit_count_exactly_together", redis_py),
        trial("node_redlock_and_lockkit_count_exactly_together", node_redlock),
    ])
}

fn trial(
    name: &'static str,
    foreign: impl FnOnce() -> Result<Command, String> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        let found = or_skip(REDIS.start()).and_then(|server| Ok((server, foreign()?)));
        let (server, foreign) = match found {
            Ok(found) => found,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        };
        count(&server, &foreign)?;
        Ok(Completion::Completed)
    })
}

/// Half of the increments are done by lockkit, each by a process of its own.
fn count(server: &Server, foreign: &Command) -> Result<(), Failed> {
    let rounds = env::var("LOCKKIT_TEST_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    let locks = Locks::new();
    fs::write(locks.path("counter"), "0")?;
    let increment = "set -eC; : >probe; n=$(cat counter); sleep 0.001; echo $((n + 1)) >|counter; \
                     rm probe";
    let url = format!("{}?dialect=plain", server.url());
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                let mut command = Command::new(foreign.get_program());
                command.args(foreign.get_args()).envs(set(foreign));
                command.args([&server.port().to_string(), "counter", &rounds.to_string()]);
                let ended = command.current_dir(locks.path("")).output().unwrap();
                assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
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

fn redis_py() -> Result<Command, String> {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", with(&["redis-py"], "PYTHONPATH")?);
    is_there(command, &["-c", "import redis"], "redis-py for python3", "redis_py.py")
}

fn node_redlock() -> Result<Command, String> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", with(&["node-redlock", "node_modules"], "NODE_PATH")?);
    let probe = ["-e", "require('redlock'); require('ioredis')"];
    is_there(command, &probe, "node-redlock for node", "node_redlock.cjs")
}

/// The folder where `scripts/test` puts a library, behind those that the variable names.
fn with(folder: &[&str], variable: &str) -> Result<std::ffi::OsString, String> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools");
    let tools = tools.join(folder.iter().collect::<PathBuf>());
    let named = env::var_os(variable).unwrap_or_default();
    let named = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    env::join_paths(named.chain([tools])).map_err(|error| error.to_string())
}

fn is_there(
    mut command: Command,
    probe: &[&str],
    what: &str,
    program: &str,
) -> Result<Command, String> {
    let mut probing = Command::new(command.get_program());
    probing.args(probe).envs(set(&command)).stderr(Stdio::null());
    match probing.status() {
        Ok(status) if status.success() => {
            let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis_clients");
            command.arg(tests.join(program));
            Ok(command)
        }
        _ => Err(format!("no {what}: `scripts/test redis` installs it where it can")),
    }
}

fn set(command: &Command) -> impl Iterator<Item = (&std::ffi::OsStr, &std::ffi::OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
}
