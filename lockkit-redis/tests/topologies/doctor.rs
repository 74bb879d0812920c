//! What is found out about several servers that are one.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::Inspect;
use lockkit_core::{Grade, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{RedisCluster, RedisSentinels, trial};

use crate::support::{Raw, impatient_driver};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("trouble_with_sentinels_is_found", || RedisSentinels::start(PATIENCE), sentinels),
        trial("trouble_with_a_cluster_is_found", || RedisCluster::start(PATIENCE), cluster),
    ]
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Those that are not good, as `grade topic: finding`.
async fn complaints(driver: &RedisDriver) -> Vec<String> {
    let mut findings = Vec::new();
    for _ in 0..20 {
        findings = driver.diagnose(&Namespace::default()).await.unwrap();
        // So it is told of a machine under load.
        if !findings.iter().any(|it| it.finding().contains("no answer within")) {
            break;
        }
    }
    let findings = findings.into_iter().filter(|it| it.grade() > Grade::Good);
    findings
        .map(|it| {
            assert!(it.advice().is_some(), "{it:?}");
            format!("{} {}: {}", it.grade(), it.topic(), it.finding())
        })
        .collect()
}

fn has(found: &[String], grade: Grade, topic: &str, word: &str) -> bool {
    let begins = format!("{grade} {topic}: ");
    found.iter().any(|it| it.starts_with(&begins) && it.contains(word))
}

async fn sentinels(set: RedisSentinels) {
    let waits = |replicas: u32| format!("{}?replicas={replicas}&call_limit=10s", set.url());
    let driver = impatient_driver(&waits(2)).await;
    let found = complaints(&driver).await;
    assert!(has(&found, Grade::Warning, "replication", "cut off"), "{found:#?}");
    assert!(!found.iter().any(|it| it.contains("sentinels:")), "{found:#?}");
    for server in set.servers() {
        let mut raw = Raw::connect(&server.url()).await;
        raw.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    }
    let found = complaints(&driver).await;
    assert!(!found.iter().any(|it| it.contains("replication:")), "{found:#?}");

    let found = complaints(&impatient_driver(&waits(3)).await).await;
    assert!(has(&found, Grade::Error, "replication", "`replicas=3`"), "{found:#?}");
    let found = complaints(&impatient_driver(&waits(1)).await).await;
    assert!(has(&found, Grade::Warning, "replication", "1 of 2"), "{found:#?}");

    let url = set.sentinels()[0].url().replace("+sentinel", "").replace("/main", "");
    let mut sentinel = Raw::connect(&url).await;
    sentinel.ask::<()>(&["SENTINEL", "SET", "main", "quorum", "9"]).await;
    let found = complaints(&driver).await;
    assert!(has(&found, Grade::Error, "sentinels", "9 sentinels must agree"), "{found:#?}");
    sentinel.ask::<()>(&["SENTINEL", "SET", "main", "quorum", "2"]).await;
    set.sentinels()[1].kill();
    let found = complaints(&driver).await;
    assert!(has(&found, Grade::Warning, "sentinels", "does not tell"), "{found:#?}");
}

async fn cluster(cluster: RedisCluster) {
    let driver = impatient_driver(&format!("{}?call_limit=10s", cluster.url())).await;
    let found = complaints(&driver).await;
    assert!(has(&found, Grade::Warning, "cluster", "the others"), "{found:#?}");
    assert!(has(&found, Grade::Warning, "replication", "127.0.0.1:"), "{found:#?}");
    for member in cluster.members() {
        let mut raw = Raw::connect(&member.url()).await;
        raw.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let found = complaints(&driver).await;
    assert!(!found.iter().any(|it| it.contains("cluster:")), "{found:#?}");
    let owner = cluster.owner(0);
    for member in cluster.members() {
        let mut raw = Raw::connect(&member.url()).await;
        raw.ask::<()>(&["CLUSTER", "DELSLOTS", "0"]).await;
    }
    // A member that has heard of the owner's claim believes it again until it hears otherwise.
    loop {
        let found = complaints(&driver).await;
        if has(&found, Grade::Error, "cluster", "1 slots belong to nobody") {
            break;
        }
        assert!(found.iter().all(|it| !it.starts_with("error")), "{owner}: {found:#?}");
    }
}
