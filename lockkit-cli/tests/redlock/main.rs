//! The command on a majority of five Redis servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Completion, Failed, Trial};
use lockkit_testkit::{REDIS, Server, Unavailable, or_skip, run, trial};

use crate::support::{Locks, Running, count_through_losses, eventually, redis_at};

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

/// How often a server forgets what it has. It is back at once, and sits out for four to five seconds:
/// so there are always three that vote, and never four for long.
const BETWEEN_RESTARTS: Duration = Duration::from_secs(3);

/// When the first one does. A fast machine may have counted before long.
const FIRST_RESTART: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    run(vec![
        // Without the limit of a trial: there can be many rounds.
        Trial::ignorable_test("servers_that_forget_do_not_spoil_the_count", restarted),
        trial("checks_tell_what_they_leave", || REDIS.start(), conformance),
    ])
}

fn restarted() -> Result<Completion, Failed> {
    let servers: Result<Vec<Server>, Unavailable> = (0..5).map(|_| REDIS.start()).collect();
    let servers = match or_skip(servers) {
        Ok(servers) => servers,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("redlock://{}?max_ttl=3s&ttl=3s", hosts.join(","));
    let locks = Locks::new();
    eventually("they vote", || {
        let mut command = locks.run(&["--try"], "probe", ["true"]);
        command.env("LOCKKIT_URL", &url);
        Running::start(command).finish().code == 0
    });
    thread::scope(|scope| {
        let (counting, is_over) = mpsc::channel::<()>();
        let servers = &servers;
        scope.spawn(move || {
            let (mut restarts, mut pause) = (0, FIRST_RESTART);
            for server in servers.iter().cycle() {
                match is_over.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => server.restart().unwrap(),
                    _ => break,
                }
                (restarts, pause) = (restarts + 1, BETWEEN_RESTARTS);
            }
            assert!(restarts > 0, "it was over before a server was restarted");
        });
        count_through_losses(&locks, &url, "counter");
        drop(counting);
    });
    Ok(Completion::Completed)
}

async fn conformance(server: Server) {
    let locks = Locks::new();
    let url = format!("redlock://{}?allow=single&delayed_restart=false", server.addr());
    let arguments = ["--url", &url, "driver::a_free"];
    let ended = Running::start(locks.lockkit("conformance", &arguments)).finish();
    assert!(ended.code == 0 && ended.out.contains("0 failed"), "{ended:?}");
    let (_, pattern) = ended.err.split_once("--pattern '").unwrap();
    let (pattern, _) = pattern.split_once('\'').unwrap();
    let mut connection = redis_at(&server.url()).await;
    let keys = |pattern: &str| redis::cmd("KEYS").arg(pattern).to_owned();
    let all: Vec<String> = keys("*").query_async(&mut connection).await.unwrap();
    let named: Vec<String> = keys(pattern).query_async(&mut connection).await.unwrap();
    assert!(!all.is_empty() && all.len() == named.len(), "{all:?} {pattern}");
}
