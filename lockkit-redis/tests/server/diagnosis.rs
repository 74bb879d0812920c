//! What is found out about servers that are sound, and about others.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, ErrorKind, Inspect};
use lockkit_core::{Diagnosis, Error, Grade, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{REDIS, RedisCluster, Server, trial};

use crate::documented::rights as rights_of;
use crate::support::{
    LONG, Raw, causes, claim, driver, impatient_driver, kind, listen, refused, take,
};

const SOUND: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_sound_server_has_good_findings_only", || REDIS.start_with(&SOUND), sound),
        trial("what_a_server_forgets_is_found", || REDIS.start(), forgetful),
        trial("a_server_that_skips_a_sync_is_not_durable", || REDIS.start_with(&SOUND), durable),
        trial("eviction_is_found", || REDIS.start(), evicting),
        trial("a_replica_is_found", || Ok((REDIS.start()?, REDIS.start()?)), replica),
        trial("what_a_server_has_no_room_for_is_found", || REDIS.start_with(&SOUND), full),
        trial("a_server_that_takes_no_writes_is_found", || REDIS.start_with(&SOUND), refusing),
        trial("connections_that_do_not_last_are_found", || REDIS.start_with(&SOUND), short_lived),
        trial("a_clock_that_jumps_is_found", || REDIS.start_with_clock(), jumping),
        trial("a_node_of_a_cluster_is_refused", one_of_a_cluster, cluster),
        trial("missing_rights_are_found", || REDIS.start_with(&SOUND), rights),
        trial("missing_rights_are_told_by_their_use", || REDIS.start_with(&SOUND), used),
        trial("documented_rights_are_enough", || REDIS.start_with(&SOUND), documented),
        trial("a_server_that_is_away_has_no_findings", || REDIS.start(), away),
    ]
}

async fn diagnose(driver: &RedisDriver) -> Vec<Diagnosis> {
    driver.diagnose(&Namespace::default()).await.unwrap()
}

/// Those that are not good, as `grade topic: finding`.
async fn complaints(driver: &RedisDriver) -> Vec<String> {
    let findings = diagnose(driver).await.into_iter().filter(|it| it.grade() > Grade::Good);
    findings
        .map(|it| {
            assert!(it.advice().is_some(), "{it:?}");
            format!("{} {}: {}", it.grade(), it.topic(), it.finding())
        })
        .collect()
}

async fn sound(server: Server) {
    let driver = driver(&server.url()).await;
    assert_eq!(complaints(&driver).await, Vec::<String>::new());
    let topics: Vec<_> = diagnose(&driver).await.iter().map(Diagnosis::topic).collect();
    let expected = [
        "version",
        "role",
        "eviction",
        "persistence",
        "replication",
        "connections",
        "rights",
        "latency",
        "clock",
    ];
    assert_eq!(topics, expected);
}

async fn forgetful(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let settings = [
        ("no", "everysec", "", "a restart forgets everything;"),
        ("no", "everysec", "60 1", "newer than the last snapshot"),
        ("yes", "everysec", "60 1", "the last second"),
        ("yes", "no", "", "the last seconds"),
    ];
    for (appends, syncs, saves, expected) in settings {
        raw.ask::<()>(&["CONFIG", "SET", "save", saves]).await;
        raw.ask::<()>(&["CONFIG", "SET", "appendfsync", syncs]).await;
        raw.ask::<()>(&["CONFIG", "SET", "appendonly", appends]).await;
        let found = complaints(&driver).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("warning persistence:"), "{found:?}");
        assert!(found[0].contains(expected), "{found:?}");
    }
}

async fn durable(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    for (setting, value, is_durable) in [
        ("appendfsync", "always", true),
        ("no-appendfsync-on-rewrite", "yes", false),
        ("no-appendfsync-on-rewrite", "no", true),
        ("appendfsync", "everysec", false),
    ] {
        raw.ask::<()>(&["CONFIG", "SET", setting, value]).await;
        let driver = driver(&server.url()).await;
        let run = driver.node().unwrap().run(LONG).await.unwrap();
        assert_eq!(run.is_durable(), is_durable, "{setting} {value}");
        assert_eq!(complaints(&driver).await.is_empty(), is_durable, "{setting} {value}");
    }
}

async fn evicting(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    for (policy, memory) in
        [("allkeys-lru", "100mb"), ("volatile-ttl", "100mb"), ("allkeys-lfu", "0")]
    {
        raw.ask::<()>(&["CONFIG", "SET", "maxmemory", memory]).await;
        raw.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]).await;
        let found = complaints(&driver).await;
        let eviction = found.iter().find(|it| it.starts_with("error eviction:")).unwrap();
        assert!(eviction.contains(policy), "{eviction}");
    }
}

async fn replica((primary, replica): (Server, Server)) {
    let driver = driver(&replica.url()).await;
    let mut raw = Raw::connect(&replica.url()).await;
    let port = primary.port().to_string();
    raw.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    let findings = diagnose(&driver).await;
    let errors: Vec<_> = findings.iter().filter(|it| it.grade() == Grade::Error).collect();
    assert_eq!(errors.len(), 1, "{findings:#?}");
    assert_eq!(errors[0].topic(), "role");
    assert!(errors[0].advice().unwrap().contains(&port), "{errors:?}");

    // The primary has a replica now, as soon as the two have met.
    let driver = crate::support::driver(&primary.url()).await;
    loop {
        let found = complaints(&driver).await;
        if found.iter().any(|it| it.starts_with("warning replication:")) {
            return;
        }
    }
}

async fn full(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    // Beside which the diagnosis itself is nothing.
    raw.ask::<()>(&["SETRANGE", "filler", "10000000", "end"]).await;
    let used: u64 = raw.info("used_memory").await.parse().unwrap();
    raw.ask::<()>(&["CONFIG", "SET", "maxmemory", &(used * 100 / 95).to_string()]).await;
    let found = complaints(&driver).await;
    assert!(found.iter().any(|it| it.starts_with("warning memory:")), "{found:?}");
}

async fn refusing(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    raw.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let found = complaints(&driver).await;
    assert!(found[0].starts_with("error replication:") && found[0].contains("0 of 1"), "{found:?}");
    assert_eq!(kind(driver.try_acquire(&claim(LONG)).await).0, ErrorKind::Unreachable);
    raw.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;

    raw.fail_to_save(&server).await;
    let found = complaints(&driver).await;
    assert!(found[0].starts_with("error persistence:"), "{found:?}");
    assert_eq!(kind(driver.try_acquire(&claim(LONG)).await).0, ErrorKind::Misconfigured);
}

async fn short_lived(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    for (setting, value) in [("timeout", "10"), ("tcp-keepalive", "0")] {
        raw.ask::<()>(&["CONFIG", "SET", setting, value]).await;
        let found = complaints(&driver).await;
        assert!(found.len() == 1 && found[0].starts_with("warning connections:"), "{found:?}");
        let advice = diagnose(&driver).await.iter().find_map(|it| it.advice().map(str::to_owned));
        let command = advice.unwrap().trim_matches('`').to_owned();
        raw.ask::<()>(&command.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(complaints(&driver).await, Vec::<String>::new());
    }
}

async fn jumping(server: Server) {
    let driver = driver(&server.url()).await;
    let found = complaints(&driver).await;
    assert!(!found.iter().any(|it| it.contains("clock:")), "{found:?}");
    let stepping = async {
        for hours in 1.. {
            server.step_clock(3600 * hours).unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let found = tokio::select! {
        found = complaints(&driver) => found,
        () = stepping => unreachable!("it goes on until the other has ended"),
    };
    assert!(found.iter().any(|it| it.starts_with("error clock:")), "{found:?}");
}

fn one_of_a_cluster() -> Result<Server, lockkit_testkit::Unavailable> {
    RedisCluster::start_member(&[])
}

async fn cluster(server: Server) {
    let error = RedisDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("node of a cluster"), "{error:?}");
}

async fn rights(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let url = server.url().replace("redis://", "redis://me:pw@");
    let all = "~{lockkit:* &{lockkit:* +@all";
    let cases: &[(&str, &[&str])] = &[
        (all, &[]),
        (
            "-hset -zadd",
            &["error rights: user `me` lacks +hset +zadd, or the keys and channels of `lockkit`"],
        ),
        (
            "resetkeys ~other:*",
            &["error rights: user `me` lacks +evalsha +eval +exists +pttl +hget +hmget +hset +del"],
        ),
        ("-eval -evalsha", &["error rights: user `me` cannot run scripts"]),
        ("-eval", &["error rights: user `me` "]),
        ("resetchannels", &["warning rights: user `me` lacks +publish +subscribe"]),
        ("-subscribe", &["warning rights: user `me` lacks +subscribe, or"]),
        ("-scan", &["warning rights: user `me` lacks +scan"]),
        (
            "-scan -pubsub",
            &[
                "warning rights: user `me` lacks +pubsub|numsub, or",
                "warning rights: user `me` lacks +scan, or",
            ],
        ),
        (
            "-pubsub",
            &[
                "warning rights: user `me` lacks +pubsub|numsub, or the keys and channels of `lockkit`: \
               a release cannot tell which waiters are dead",
            ],
        ),
        ("-config", &["warning rights: the server does not tell", "warning persistence:"]),
        ("-info", &["warning rights: the server does not tell"]),
        ("-time", &["error rights: user `me` lacks +time, or"]),
    ];
    for (rights, expected) in cases {
        let user = format!("ACL SETUSER me reset on >pw {all} {rights}");
        raw.ask::<()>(&user.split(' ').collect::<Vec<_>>()).await;
        raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        let found = complaints(&driver(&url).await).await;
        assert_eq!(found.len(), expected.len(), "{rights}: {found:#?}");
        for (found, expected) in found.iter().zip(*expected) {
            assert!(found.starts_with(expected), "{rights}: {found}");
        }
    }

    // What is advised helps.
    for rights in
        ["+@all -hset", "~* &* +@all -hset -publish", "~{lockkit:* +@all", "~* +evalsha +eval +del"]
    {
        let user = format!("ACL SETUSER me reset on >pw {rights}");
        raw.ask::<()>(&user.split(' ').collect::<Vec<_>>()).await;
        let driver = driver(&url).await;
        let mut steps = 0;
        loop {
            let findings = diagnose(&driver).await;
            let Some(bad) = findings.iter().find(|it| it.grade() > Grade::Good) else { break };
            assert!(steps < 6, "{rights}: {findings:#?}");
            steps += 1;
            let advice = bad.advice().unwrap();
            let command = advice.split('`').nth(1).unwrap();
            raw.ask::<()>(&command.split(' ').collect::<Vec<_>>()).await;
        }
    }
}

/// What cannot be done without a right is what the diagnosis says cannot be done.
async fn used(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER me reset on >pw ~* &* +@all";
    for dialect in ["lockkit", "plain"] {
        let url = format!("{}?dialect={dialect}", server.url());
        let whole = driver(&url).await;
        for right in [
            "time",
            "exists",
            "pttl",
            "get",
            "hget",
            "hmget",
            "hset",
            "set",
            "del",
            "pexpire",
            "pexpireat",
            "zadd",
            "zrem",
            "zrange",
            "zrangebyscore",
            "zscore",
            "zcard",
        ] {
            raw.ask::<()>(&user.split(' ').collect::<Vec<_>>()).await;
            let me = driver(&url.replace("redis://", "redis://me:pw@")).await;
            raw.ask::<()>(&["ACL", "SETUSER", "me", &format!("-{right}")]).await;
            let (free, holder) = (claim(LONG), claim(LONG));
            let cannot_take = me.try_acquire(&free).await.is_err();
            whole.release(&free).await.unwrap();
            take(&whole, &holder).await;
            let cannot_keep = me.renew(&holder).await.is_err();
            let cannot_release = me.release(&holder).await.is_err();
            take(&whole, &holder).await;
            let waiter = claim(LONG).waiting();
            let asked = me.try_acquire(&waiter).await;
            let gave_up = me.release(&waiter).await;
            let cannot_wait = asked.is_err() || gave_up.is_err() && !cannot_release;
            raw.ask::<()>(&["FLUSHALL"]).await;
            let cannot = [
                (cannot_take, "taken"),
                (cannot_wait && !cannot_take, "waited for"),
                (cannot_keep, "kept"),
                (cannot_release, "released"),
            ];
            let cannot: Vec<_> = cannot.iter().filter(|it| it.0).map(|it| it.1).collect();
            let found = complaints(&me).await;
            let told = found.iter().find_map(|it| it.rsplit_once(": locks cannot be "));
            let told = told.map_or(Vec::new(), |(_, told)| {
                told.split(" or ").flat_map(|it| it.split(", ")).collect()
            });
            assert_eq!(told, cannot, "{dialect}, {right}: {found:?}");
        }
    }
}

/// The rights that `docs/redis.md` tells to give are those that are needed, and no more.
async fn documented(server: Server) {
    let [locks, looks, ..] = &*rights_of("lockkit:") else { panic!("two blocks of rights") };
    let mut raw = Raw::connect(&server.url()).await;
    let mut give = async |words: &[String]| {
        let words = words.iter().map(String::as_str);
        let command: Vec<_> = ["ACL", "SETUSER", "app"].into_iter().chain(words).collect();
        raw.ask::<()>(&command).await;
    };
    give(&["reset".into()]).await;
    give(locks).await;
    let url = server.url().replace("redis://", "redis://app:pw@");
    let app = driver(&url).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&app, &holder).await;
    listen(&app, &waiter).await;
    app.renew(&holder).await.unwrap();
    app.release(&holder).await.unwrap();
    app.changed(&waiter).await;
    refused(&app, &holder).await;
    app.look(waiter.name()).await.unwrap();
    let missing = complaints(&app).await;
    assert_eq!(missing.len(), 2, "what the server tells, and the list: {missing:?}");

    give(looks).await;
    assert_eq!(complaints(&app).await, Vec::<String>::new());
    assert_eq!(app.held(&Namespace::default()).await.unwrap().len(), 1);
    app.break_hold(waiter.name(), None).await.unwrap().unwrap();

    for word in locks.iter().chain(looks) {
        // A database other than the first is chosen before anything else.
        if let Some(right) = word.strip_prefix('+').filter(|&right| right != "select") {
            give(&[format!("-{right}")]).await;
            let missing = complaints(&app).await;
            assert!(!missing.is_empty(), "{right} is not needed");
            give(std::slice::from_ref(word)).await;
        }
    }
}

async fn away(server: Server) {
    let driver = impatient_driver(&format!("{}?call_limit=200ms", server.url())).await;
    server.stop().unwrap();
    let (kind, text) = kind(driver.diagnose(&Namespace::default()).await);
    assert_eq!(kind, ErrorKind::Unreachable, "{text}");
}
