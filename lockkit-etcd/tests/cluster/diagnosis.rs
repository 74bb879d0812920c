//! What the diagnosis tells of a cluster that is not well.

use etcd_client::{Client, MemberAddOptions};
use libtest_mimic::Trial;
use lockkit_core::driver::Driver;
use lockkit_core::{Diagnosis, Grade, Namespace};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{ETCD, Ensemble, GrpcProxy, Proxy, Server, trial};

use crate::news::behind_grpc_proxy;
use crate::support::{driver, millis};

pub(crate) fn trials() -> Vec<Trial> {
    let three = || ETCD.start_ensemble(3);
    vec![
        trial("a_cluster_that_is_well_has_no_findings", three, well),
        trial("a_member_that_is_slow_is_named", three, slow),
        trial("a_member_that_only_learns_does_not_count", || ETCD.start(), learner),
        trial("a_proxy_that_numbers_watches_is_told", behind_grpc_proxy, renumbered),
    ]
}

async fn diagnose(driver: &EtcdDriver) -> Vec<Diagnosis> {
    driver.inspect().unwrap().diagnose(&Namespace::default()).await.unwrap()
}

async fn well(ensemble: Ensemble) {
    let driver = driver(&ensemble.url()).await;
    let findings = diagnose(&driver).await;
    let topics: Vec<_> = findings.iter().map(Diagnosis::topic).collect();
    let all = [
        "version", "members", "cluster", "leader", "quota", "lag", "size", "alarms", "history",
        "pace", "news", "rights",
    ];
    assert_eq!(topics, all);
    for finding in findings {
        // A machine under load is slow, and Debian's release has faults.
        let is_excused = matches!(finding.topic(), "version" | "pace");
        assert!(is_excused || finding.grade() == Grade::Good, "{finding:?}");
    }
}

async fn slow(ensemble: Ensemble) {
    let mut proxies = Vec::new();
    for member in ensemble.members() {
        proxies.push(Proxy::start(member.addr()).await);
    }
    let ports: Vec<u16> = proxies.iter().map(|proxy| proxy.addr().port()).collect();
    let driver = driver(&ensemble.url_at(&ports)).await;
    proxies[1].answers().delay(millis(600));
    let findings = diagnose(&driver).await;
    let pace = findings.iter().find(|finding| finding.topic() == "pace").unwrap();
    assert_eq!(pace.grade(), Grade::Warning, "{pace:?}");
    assert!(pace.finding().contains(&proxies[1].addr().to_string()), "{pace:?}");
}

/// It need not run for that: it has no vote.
async fn learner(server: Server) {
    let url = format!("http://127.0.0.1:{}", server.port());
    let client = Client::connect([url], None).await.unwrap();
    let learns = MemberAddOptions::new().with_is_learner();
    client.cluster_client().member_add(["http://127.0.0.1:1".into()], Some(learns)).await.unwrap();
    let findings = diagnose(&driver(&server.url()).await).await;
    let size = findings.iter().find(|finding| finding.topic() == "size").unwrap();
    assert!(size.finding().contains("one member"), "{size:?}");
}

async fn renumbered((_server, proxy): (Server, GrpcProxy)) {
    let driver = driver(&format!("etcd://{}", proxy.addr())).await;
    let findings = diagnose(&driver).await;
    let news = findings.iter().find(|finding| finding.topic() == "news").unwrap();
    assert_eq!(news.grade(), Grade::Warning, "{news:?}");
    assert!(news.finding().contains("grpc-proxy"), "{news:?}");
}
