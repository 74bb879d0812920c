//! Other libraries' clients, and lockkit in their dialects, on one lock.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, thread};

use libtest_mimic::{Completion, Failed, Trial};
use lockkit_testkit::{Server, ZOOKEEPER, or_skip};

use crate::support::{Locks, Running};

/// How many processes of each kind there are.
const PROCESSES: usize = 4;
/// How often each of them increments.
const ROUNDS: usize = 50;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("kazoo_and_lockkit_count_exactly_together", "kazoo", kazoo),
        trial("curator_and_lockkit_count_exactly_together", "curator", curator),
    ]
}

fn trial(
    name: &'static str,
    dialect: &'static str,
    foreign: impl FnOnce() -> Result<Command, String> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        let found = or_skip(ZOOKEEPER.start()).and_then(|server| Ok((server, foreign()?)));
        let (server, foreign) = match found {
            Ok(found) => found,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        };
        count(&server, dialect, &foreign)?;
        Ok(Completion::Completed)
    })
}

/// Half of the increments are done by lockkit, each by a process of its own.
fn count(server: &Server, dialect: &str, foreign: &Command) -> Result<(), Failed> {
    let locks = Locks::new();
    fs::write(locks.path("counter"), "0")?;
    let increment = "set -eC; : >probe; n=$(cat counter); sleep 0.001; echo $((n + 1)) >|counter; \
                     rm probe";
    let url = format!("{}/locks?dialect={dialect}", server.url());
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                let mut command = Command::new(foreign.get_program());
                command.args(foreign.get_args());
                for (name, value) in foreign.get_envs() {
                    command.env(name, value.unwrap());
                }
                command.args([&server.addr().to_string(), "/locks/lockkit/counter"]);
                command.arg(ROUNDS.to_string()).current_dir(locks.path(""));
                let ended = command.output().unwrap();
                assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let mut command = locks.run(&[], "counter", ["sh", "-c", increment]);
                    command.env("LOCKKIT_URL", &url);
                    let ended = Running::start(command).finish();
                    assert_eq!(ended.code, 0, "{ended:?}");
                }
            });
        }
    });
    let counter = fs::read_to_string(locks.path("counter"))?;
    assert_eq!(counter.trim().parse::<usize>()?, 2 * PROCESSES * ROUNDS);
    Ok(())
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zookeeper").join(file)
}

fn kazoo() -> Result<Command, String> {
    // Where `scripts/test` puts it.
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/kazoo");
    let path = env::join_paths(
        env::split_paths(&env::var_os("PYTHONPATH").unwrap_or_default()).chain([tools]),
    );
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", path.map_err(|error| error.to_string())?);
    let mut probe = Command::new("python3");
    probe.args(["-c", "import kazoo"]).envs(set(&command)).stderr(Stdio::null());
    match probe.status() {
        Ok(status) if status.success() => {
            command.arg(here("foreign.py"));
            Ok(command)
        }
        _ => Err("no kazoo for python3: `scripts/test zookeeper` installs it".into()),
    }
}

fn set(command: &Command) -> impl Iterator<Item = (&std::ffi::OsStr, &std::ffi::OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
}

fn curator() -> Result<Command, String> {
    const FOLDER: &str = "/usr/share/java";
    const JARS: [&str; 6] = [
        "curator-recipes.jar",
        "curator-framework.jar",
        "curator-client.jar",
        "guava.jar",
        "slf4j-api.jar",
        "zookeeper.jar",
    ];
    let jars = JARS.map(|jar| Path::new(FOLDER).join(jar));
    let compiler = Command::new("javac").arg("-version").output();
    if !jars.iter().all(|jar| jar.exists()) || compiler.is_err() {
        return Err("no Curator or no javac: `scripts/test zookeeper` installs them".into());
    }
    let path = env::join_paths(jars).map_err(|error| error.to_string())?;
    let mut command = Command::new("java");
    command.arg("-cp").arg(path).arg(here("Foreign.java"));
    Ok(command)
}
