//! The command on a real Redis.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use lockkit_testkit::{
    REDIS, RedisCluster, RedisSentinels, Server, Unavailable, or_skip, run, trial,
};
use rustix::process::Signal;

use crate::support::{
    Ended, LIMIT, Locks, Running, count, gone_in_time, lockkit, redis_at, state, waited_for,
};

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "the tests on SQLite use the rest")]
mod support;

fn main() -> ExitCode {
    run(vec![
        // Without the limit of a trial: there can be many rounds.
        Trial::ignorable_test("a_plain_file_counts_exactly", || match or_skip(REDIS.url()) {
            Ok(url) => {
                count(&Locks::new(), &url, &unique("counter"));
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        }),
        trial("the_command_goes_with_lockkit_and_the_lock_within_the_ttl", || REDIS.url(), killed),
        trial("a_server_that_does_not_answer_ends_the_command", || REDIS.start(), silent),
        trial("a_short_outage_does_not_end_the_command", || REDIS.start(), outage),
        trial(
            "an_outage_after_the_command_takes_nothing_from_it",
            || REDIS.start(),
            outage_at_least,
        ),
        trial("a_request_without_an_answer_is_told_of_as_one", || REDIS.start(), unanswered),
        trial("a_late_renewal_keeps_nothing_of_a_lost_lock", || REDIS.start(), renewed_late),
        trial("a_second_signal_ends_the_clean_up", || REDIS.start(), told_twice),
        trial("a_failover_does_not_end_the_command", sentinels, failover),
        trial("a_broken_hold_goes_to_the_next", || REDIS.url(), broken),
        trial("a_run_does_not_wait_for_itself", || REDIS.url(), nested),
        trial("the_doctor_sees_that_keys_are_evicted", || REDIS.start(), evicting),
        trial("a_socket_is_a_way_as_well", || REDIS.start(), over_a_socket),
        trial(
            "the_doctor_tells_a_node_of_a_cluster",
            || RedisCluster::start_member(&[]),
            of_a_cluster,
        ),
        trial("checks_need_rights_of_their_own", || REDIS.start(), without_rights),
        trial("checks_tell_what_they_leave", || REDIS.start(), conformance),
        #[cfg(feature = "bench")]
        trial("what_keeps_an_order_on_request_is_measured_so", || REDIS.start(), in_order),
        trial("a_wrong_password_is_77", || REDIS.start_with(&["--requirepass", "sesame"]), denied),
    ])
}

/// A name that no other run has on a server that is shared.
fn unique(name: &str) -> String {
    format!("{name}-{}", process::id())
}

fn start(locks: &Locks, url: &str, ttl: &str, name: &str, script: &str) -> Running {
    let mut command = locks.run(&["--ttl", ttl], name, ["sh", "-c", script]);
    command.env("LOCKKIT_URL", url);
    Running::start(command)
}

async fn killed(url: String) {
    let (locks, name) = (Locks::new(), unique("killed"));
    let running = start(&locks, &url, "2s", &name, "sleep 1000 & echo ready; wait; echo never");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let waiting = start(&locks, &url, "2s", &name, "echo mine");
    running.signal(Signal::KILL);
    // Nobody is left who could write: neither the shell nor what it started.
    assert_eq!(running.line(), None);
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
}

async fn silent(server: Server) {
    gone_in_time(async || {
        let locks = Locks::new();
        let gone = locks.watched();
        let script = "exec 9>watched; trap 'echo asked' TERM; echo ready; \
                      while :; do sleep 1; done";
        let running = start(&locks, &server.url(), "9s", "silent", script);
        assert_eq!(running.line().as_deref(), Some("ready"));
        server.stop().unwrap();
        let last_renewal = Instant::now();
        let gone = gone.recv_timeout(LIMIT).unwrap();
        let ended = running.finish();
        assert_eq!((ended.code, &*ended.out), (70, "asked\n"), "{ended:?}");
        // For the next one.
        server.cont().unwrap();
        // Not a limit of the test: the lease, which the command promises not to outlive.
        let is_in_time = gone - last_renewal < Duration::from_secs(9);
        match is_in_time && ended.err.contains("is about to end: killing") {
            true => Ok(()),
            false => Err(format!("{:?}: {ended:?}", gone - last_renewal)),
        }
    })
    .await;
}

async fn outage(server: Server) {
    let locks = Locks::new();
    let running = start(&locks, &server.url(), "9s", "outage", "echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    server.stop().unwrap();
    // The first renewal, at a third of the lease, finds nobody.
    while !running.complaint().unwrap().contains("not renewed") {}
    server.cont().unwrap();
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
}

/// The command had ended by then.
async fn outage_at_least(server: Server) {
    let (locks, url) = (Locks::new(), format!("{}?ttl=3s", server.url()));
    let mut command = locks.run(&["--at-least", "1h"], "least", ["echo", "done"]);
    command.env("LOCKKIT_URL", url);
    let running = Running::start(command);
    assert_eq!(running.line().as_deref(), Some("done"));
    // It is past the end of the command, whose renewal has found nobody.
    server.stop().unwrap();
    while !running.complaint().unwrap().contains("not renewed") {}
    let ended = running.finish();
    server.cont().unwrap();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("the command has run under the lock, but"), "{ended:?}");
}

/// Whoever reads that the backend does not answer looks for the wrong thing.
async fn unanswered(server: Server) {
    let (locks, url) = (Locks::new(), format!("{}?call_limit=500ms", server.url()));
    let holder = start(&locks, &url, "30s", "unanswered", "echo ready; read -r _ <gate");
    assert_eq!(holder.line().as_deref(), Some("ready"));
    let mut command = locks.run(&["--wait", "4s"], "unanswered", ["true"]);
    command.env("LOCKKIT_URL", url);
    let waiting = Running::start(command);
    assert!(waiting.complaint().unwrap().contains("waiting for lock"));
    server.stop().unwrap();
    // The next ask of it, which may be carried out at any time from now on.
    while !waiting.complaint().unwrap().contains("no answer within") {}
    server.cont().unwrap();
    let ended = waiting.finish();
    assert_eq!(ended.code, 75, "{ended:?}");
    assert!(ended.err.contains("was not acquired within 4s"), "{ended:?}");
    assert!(ended.err.contains("what became of a request to redis is not known"), "{ended:?}");
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

/// Its request is carried out when the command is over.
async fn renewed_late(server: Server) {
    let locks = Locks::new();
    let running = start(&locks, &server.url(), "3s", "late", "echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    server.stop().unwrap();
    // The next line is that of nobody.
    assert_eq!(running.line(), None);
    server.cont().unwrap();
    let ended = running.finish();
    assert_eq!(ended.code, 70, "{ended:?}");
    assert!(!ended.err.contains("runs out by itself"), "{ended:?}");
    let mut command = locks.run(&["--try"], "late", ["true"]);
    command.env("LOCKKIT_URL", server.url());
    assert_eq!(Running::start(command).finish().code, 0);
}

/// Whoever cannot wait for that.
async fn told_twice(server: Server) {
    let (locks, url) = (Locks::new(), format!("{}?call_limit=200ms", server.url()));
    let running = start(&locks, &url, "30s", "twice", "trap '' TERM; echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    server.stop().unwrap();
    locks.open_gate();
    // The first ones may find it waiting for the command, or for the answer to its release.
    let pid = running.pid.to_string();
    while state(&pid).is_some_and(|state| state != 'Z') {
        running.signal(Signal::TERM);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = running.finish();
    assert!(ended.err.contains("told to end at once: what became of a request"), "{ended:?}");
}

fn sentinels() -> Result<RedisSentinels, Unavailable> {
    // Only when it is asked for, whatever a busy machine does.
    RedisSentinels::start(Duration::from_secs(60))
}

async fn failover(set: RedisSentinels) {
    // All that there are: else one may be elected that has not heard of the lock.
    let (locks, url) = (Locks::new(), format!("{}?replicas=2&call_limit=10s", set.url()));
    let running = start(&locks, &url, "30s", "failover", "echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let before = set.primary();
    assert_ne!(set.fail_over(), before);
    // The successor knows who holds, and the release arrives there.
    let status = |code| {
        let seen = command(&locks, &url, &["status", "failover"]);
        assert_eq!(seen.code, code, "{seen:?}");
    };
    status(1);
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
    status(0);
    let doctor = command(&locks, &set.url(), &["doctor"]);
    assert!(doctor.code == 0 && doctor.out.contains("sentinels"), "{doctor:?}");
}

/// The command, but `run`.
fn command(locks: &Locks, url: &str, words: &[&str]) -> Ended {
    let mut command = locks.lockkit(words[0], &words[1..]);
    command.env("LOCKKIT_URL", url);
    Running::start(command).finish()
}

async fn broken(url: String) {
    let (locks, name) = (Locks::new(), unique("broken"));
    let holder = start(&locks, &url, "10s", &name, "echo $LOCKKIT_OWNER; sleep 1000");
    let owner = holder.line().unwrap();
    let mut waiting = locks.run(&["--fair"], &name, ["sh", "-c", "echo mine"]);
    waiting.env("LOCKKIT_URL", &url);
    let waiting = Running::start(waiting);
    let said = waiting.complaint().unwrap();
    assert!(said.contains(&format!(":{} for ", holder.pid)), "{said}");
    let lock = waited_for(&locks, &url, &name, 1);
    assert_eq!(lock["holder"]["owner"], owner);
    assert_eq!(lock["listeners"], 1);
    let list = command(&locks, &url, &["status"]);
    assert!(list.code == 0 && list.out.contains(&format!("{name} ")), "{list:?}");

    let answer = command(&locks, &url, &["break", "--yes", "--owner", &owner, &name]);
    assert!(answer.code == 0 && answer.out.contains("broken: lock"), "{answer:?}");
    assert_eq!(waiting.line().as_deref(), Some("mine"));
    assert_eq!(waiting.finish().code, 0);
    assert_eq!(holder.finish().code, 70);
    assert_eq!(command(&locks, &url, &["status", &name]).code, 0);
}

async fn nested(url: String) {
    let (locks, name) = (Locks::new(), unique("nested"));
    let program = lockkit().get_program().to_str().unwrap().to_owned();
    let ended = start(&locks, &url, "3s", &name, &format!("{program} run {name} -- true")).finish();
    assert_eq!(ended.code, 78, "{ended:?}");
    assert!(ended.err.contains("would wait for itself"), "{ended:?}");
}

async fn evicting(server: Server) {
    let locks = Locks::new();
    let url = server.url();
    assert_eq!(command(&locks, &url, &["doctor"]).code, 0);
    let mut connection = redis_at(&server.url()).await;
    for (parameter, value) in [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "100mb")] {
        let set = redis::cmd("CONFIG").arg(&["SET", parameter, value]).to_owned();
        set.exec_async(&mut connection).await.unwrap();
    }
    let ended = command(&locks, &url, &["doctor"]);
    assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
    let finding = ended.out.lines().skip_while(|line| !line.starts_with("error")).nth(1);
    assert!(finding.is_some_and(|advice| advice.contains("-> ")), "{ended:?}");
}

async fn over_a_socket(server: Server) {
    let (locks, socket) = (Locks::new(), server.data().join("redis.sock"));
    let url = format!("redis+unix://{}?db=1", socket.display());
    let running = start(&locks, &url, "3s", "socket", "echo ready; read -r _ <gate");
    assert_eq!(running.line().as_deref(), Some("ready"));
    let held = command(&locks, &format!("{}/1", server.url()), &["status", "socket"]);
    assert_eq!(held.code, 1, "it is the same database: {held:?}");
    locks.open_gate();
    assert_eq!(running.finish().code, 0);
    assert_eq!(command(&locks, &url, &["doctor"]).code, 0);
}

async fn of_a_cluster(server: Server) {
    let ended = command(&Locks::new(), &server.url(), &["doctor"]);
    assert_eq!((ended.code, &*ended.err), (1, ""), "{ended:?}");
    assert!(ended.out.contains("node of a cluster"), "{ended:?}");
}

async fn conformance(server: Server) {
    let locks = Locks::new();
    let ended = command(&locks, &server.url(), &["conformance", "driver::a_free"]);
    assert!(ended.code == 0 && ended.out.contains("0 failed"), "{ended:?}");
    let (_, pattern) = ended.err.split_once("--pattern '").unwrap();
    let (pattern, _) = pattern.split_once('\'').unwrap();
    let mut connection = redis_at(&server.url()).await;
    let keys = |pattern: &str| redis::cmd("KEYS").arg(pattern).to_owned();
    let all: Vec<String> = keys("*").query_async(&mut connection).await.unwrap();
    let named: Vec<String> = keys(pattern).query_async(&mut connection).await.unwrap();
    assert!(!all.is_empty() && all.len() == named.len(), "{all:?} {pattern}");
    assert!(all.iter().all(|key| key.ends_with(":bucket")), "{all:?}");
    // Where another database is meant, that one is looked into.
    assert!(ended.err.contains(": redis-cli --scan"), "{ended:?}");
    for place in ["/3", "?db=3"] {
        let url = server.url() + place;
        let ended = command(&locks, &url, &["conformance", "driver::a_free"]);
        assert!(ended.err.contains(": redis-cli -n 3 --scan"), "{ended:?}");
        assert!(ended.err.contains("xargs redis-cli -n 3 del"), "{ended:?}");
    }
}

/// A user of the docs, whose locks are in another namespace.
async fn without_rights(server: Server) {
    let mut connection = redis_at(&server.url()).await;
    let url = format!("redis://app:pw@{}", server.addr());
    let rights = "on >pw ~{lockkit:* &{lockkit:* +evalsha +eval +select +time +exists +pttl +hget \
                  +hmget +hset +del +pexpire +pexpireat +zadd +zrem +zrange +zrangebyscore +zscore \
                  +zcard +publish +subscribe +unsubscribe +pubsub|numsub";
    let grant = |rights: &str| {
        let mut grant = redis::cmd("ACL");
        grant.arg("SETUSER").arg("app").arg(rights.split_whitespace().collect::<Vec<_>>());
        grant
    };
    let checks = |code: i32| {
        let ended = command(&Locks::new(), &url, &["conformance", "driver::tokens_are"]);
        assert_eq!(ended.code, code, "{ended:?}");
        ended
    };
    let () = grant(rights).query_async(&mut connection).await.unwrap();
    let ended = checks(77);
    assert!(ended.out.is_empty() && ended.err.contains("begin with `conformance-`"), "{ended:?}");
    let () = grant("~{conformance-* &{conformance-*").query_async(&mut connection).await.unwrap();
    checks(77);
    let () = grant("+scan").query_async(&mut connection).await.unwrap();
    let ended = checks(0);
    assert!(!ended.err.contains("runs out by itself"), "{ended:?}");
}

/// Whatever the URL calls the driver, and whatever else it says.
#[cfg(feature = "bench")]
async fn in_order(server: Server) {
    let socket = format!("redis+unix://{}", server.data().join("redis.sock").display());
    let plain = format!("{}?dialect=plain", server.url());
    let arguments = ["--quick", "--rounds", "1", "--no-embedded", "--fair", "--url", &plain];
    let ended =
        command(&Locks::new(), &socket, &[&["bench"], &arguments[..], &["hand-over"]].concat());
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    let labels = [format!("{socket}, fair"), socket, plain];
    let rows: Vec<_> = ended.out.lines().filter(|line| line.contains("redis")).collect();
    assert_eq!(rows.len(), labels.len(), "{ended:?}");
    for (row, label) in rows.iter().zip(&labels) {
        assert!(row.trim_start().starts_with(&format!("{label}  ")), "{ended:?}");
    }
}

async fn denied(server: Server) {
    let (locks, url) = (Locks::new(), format!("redis://me:hunter2@{}", server.addr()));
    let ended = start(&locks, &url, "3s", "denied", "echo never").finish();
    assert_eq!((ended.code, &*ended.out), (77, ""), "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
}
