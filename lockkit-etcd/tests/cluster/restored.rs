//! A cluster that stands where another did, as if it was restored from a snapshot of that one: it has
//! leases and keys of before, and who knows the one before is refused.

use std::time::Duration;

use etcd_client::{LeaseGrantOptions, PutOptions};
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver as _, ErrorKind};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{Proxy, Server, trial};
use tokio::select;
use tokio::time::sleep;

use crate::support::{LONG, Raw, claim, driver, granted, kind, millis, named, refused, take};
use crate::weather::two_clusters;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("an_ask_of_a_restored_cluster_leaves_nothing", two_clusters, asked),
        trial("who_does_not_belong_keeps_no_lease_of_a_restored_cluster", two_clusters, kept),
        trial("a_restored_cluster_tells_nobody_who_does_not_belong", two_clusters, told),
    ]
}

/// A driver that goes to the cluster of before, and then to the restored one.
struct Scene {
    before: Server,
    restored: Server,
    proxy: Proxy,
    driver: EtcdDriver,
    raw: Raw,
}

impl Scene {
    async fn new((before, restored): (Server, Server)) -> Self {
        let proxy = Proxy::start(before.addr()).await;
        let driver = driver(&before.url_at(proxy.addr())).await;
        let raw = Raw::on(restored.port()).await;
        Self { before, restored, proxy, driver, raw }
    }

    /// Two leases that the driver keeps for the next claims are in the snapshot.
    async fn has_leases(&mut self, ttl: Duration) -> Vec<i64> {
        let used = ["one", "two"].map(|name| named(name, ttl));
        for claim in &used {
            take(&self.driver, claim).await;
        }
        let leases = Raw::on(self.before.port()).await.leases().await;
        for claim in &used {
            self.driver.release(claim).await.unwrap();
        }
        let seconds = i64::try_from(ttl.as_secs()).unwrap();
        for &lease in &leases {
            let options = LeaseGrantOptions::new().with_id(lease);
            self.raw.client.lease_grant(seconds, Some(options)).await.unwrap();
        }
        leases
    }

    async fn restore(&self) {
        self.proxy.switch_upstream(self.restored.addr());
        self.proxy.reset().await;
    }

    async fn is_refused(&self, claim: &Claim) {
        loop {
            let (kind, text) = kind(self.driver.try_acquire(claim).await);
            if !kind.is_transient() {
                assert_eq!(kind, ErrorKind::Misconfigured, "{text}");
                return;
            }
        }
    }
}

async fn asked(servers: (Server, Server)) {
    let mut scene = Scene::new(servers).await;
    scene.has_leases(LONG).await;
    scene.restore().await;
    for claim in [claim(LONG), claim(LONG).waiting()] {
        scene.is_refused(&claim).await;
        assert_eq!(scene.raw.keys().await, []);
    }
    take(&driver(&scene.restored.url()).await, &claim(LONG)).await;
}

async fn kept(servers: (Server, Server)) {
    const TTL: Duration = Duration::from_secs(5);
    let mut scene = Scene::new(servers).await;
    let (other, waiting) = (driver(&scene.restored.url()).await, claim(LONG).fair());
    let lease = scene.has_leases(TTL).await[0];
    // When the snapshot was made, it was in use.
    let held = format!("lockkit/v1/lockkit/orders%2f42/{lease:x}");
    let options = PutOptions::new().with_lease(lease);
    scene.raw.client.put(held, "", Some(options)).await.unwrap();
    refused(&other, &waiting).await;
    scene.restore().await;
    granted(&other, &waiting).await;
}

async fn told(servers: (Server, Server)) {
    let mut scene = Scene::new(servers).await;
    let mut before = Raw::on(scene.before.port()).await;
    let (held, waiting) = (claim(LONG), claim(LONG).fair());
    take(&driver(&scene.before.url()).await, &held).await;
    let (key, _) = before.keys().await.remove(0);
    // The snapshot is older than the place of whoever waits.
    for _ in 0..200 {
        before.client.put("x", "y", None).await.unwrap();
    }
    refused(&scene.driver, &waiting).await;
    // Its own key and the holder's.
    while before.watchers() < 2 {
        sleep(millis(5)).await;
    }
    scene.restore().await;
    let granted =
        async { while !matches!(scene.driver.changed(&waiting).await, Change::Granted(_)) {} };
    let left = async {
        while scene.raw.begun_and_ended("Watch").0 == 0 {
            sleep(millis(5)).await;
        }
        // With each stream that it opens, the waiter finds out anew.
        while scene.raw.begun_and_ended("Watch").1 < 2 {
            scene.raw.client.put(&*key, "", None).await.unwrap();
            scene.raw.client.delete(&*key, None).await.unwrap();
        }
    };
    select! {
        () = granted => panic!("it has the lock, and no key"),
        () = left => (),
    }
}
