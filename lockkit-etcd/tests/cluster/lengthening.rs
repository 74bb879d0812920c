//! A key that is hung on a longer lease, in bad weather.

use std::time::Duration;

use futures_util::future::join;
use libtest_mimic::Trial;
use lockkit_core::FencingToken;
use lockkit_core::driver::{Attempt, Claim, Driver as _, ErrorKind, Release, Renewal, Vouch};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{ETCD, Proxy, Server, trial};

use crate::support::{LONG, Raw, claim, impatient_driver, kind, millis, named, take};
use crate::weather::{fill, full, keepalive, two_ways};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_lengthening_whose_answer_is_lost_is_done_once", || ETCD.start(), answer_lost),
        trial("a_lengthening_that_is_lost_is_done_later", || ETCD.start(), request_lost),
        trial("a_lengthening_that_is_not_sent_leaves_its_lease", || ETCD.start(), not_sent),
        trial("a_lengthening_gets_over_the_end_of_its_lease", || ETCD.start(), lease_lost),
        trial("who_asks_again_keeps_a_key_that_has_moved", || ETCD.start(), moved_before),
        trial("a_key_that_outlives_its_leases_gets_another", || ETCD.start(), outlives),
        trial("a_lengthening_of_what_is_gone_is_a_loss", || ETCD.start(), key_gone),
        trial("a_release_after_a_lost_lengthening_leaves_nothing", || ETCD.start(), released),
        trial("a_lengthening_of_several_requests_ends_in_time", || ETCD.start(), slow),
        trial("a_lengthening_that_lands_after_the_next_is_refused", || ETCD.start(), late),
        trial("a_hold_survives_a_lengthening_of_a_full_database", full, nospace),
    ]
}

/// Which does not run out while a test is under way either.
const SHORT: Duration = Duration::from_secs(60);

/// A hold with a short lease, while a longer one lies idle, so that one request hangs the key there.
struct Scene {
    proxy: Proxy,
    driver: EtcdDriver,
    raw: Raw,
    longer: Claim,
    short_lease: i64,
    long_lease: i64,
}

impl Scene {
    async fn new(server: &Server) -> Self {
        let proxy = Proxy::start(server.addr()).await;
        let url = format!("{}?call_limit=1s", server.url_at(proxy.addr()));
        let (driver, mut raw) = (impatient_driver(&url).await, Raw::on(server.port()).await);
        let idle = named("idle", LONG);
        take(&driver, &idle).await;
        let long_lease = raw.keys().await[0].1;
        driver.release(&idle).await.unwrap();
        let short = claim(SHORT);
        take(&driver, &short).await;
        let short_lease = raw.keys().await[0].1;
        Self { proxy, driver, raw, longer: short.with_ttl(LONG), short_lease, long_lease }
    }

    /// That it was asked for is not known by the answer.
    async fn ask_in_vain(&self) {
        assert_eq!(kind(self.driver.renew(&self.longer).await).0, ErrorKind::Unknown);
        self.proxy.reset().await;
        self.proxy.requests().pass();
        self.proxy.answers().pass();
    }

    /// Goes on as a keeper does.
    async fn renewed(&self) -> Renewal {
        loop {
            match self.driver.renew(&self.longer).await {
                Ok(renewal) => return renewal,
                Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
            }
        }
    }

    /// Asks again for what is held, with the lease that it has.
    async fn token(&self) -> FencingToken {
        let short = self.longer.clone().with_ttl(SHORT);
        loop {
            match self.driver.try_acquire(&short).await {
                Ok(Attempt::Granted(grant)) => return grant.fencing_token().unwrap(),
                Ok(other) => panic!("not granted: {other:?}"),
                Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
            }
        }
    }

    /// What the key may hang on is nobody else's.
    async fn another_has_another_lease(&mut self) {
        let other = named("other", LONG);
        while self.driver.try_acquire(&other).await.is_err() {}
        let key = self.raw.key_of(other.owner()).await;
        let mut keys = self.raw.keys().await.into_iter();
        let (_, lease) = keys.find(|(other, _)| *other == key).unwrap();
        assert_ne!(lease, self.long_lease);
        self.driver.release(&other).await.unwrap();
    }

    /// Goes on where the key hangs now, with the lease that was asked for before.
    async fn is_done_later(&mut self) {
        self.another_has_another_lease().await;
        let grants = self.grants();
        assert!(matches!(self.renewed().await, Renewal::Held(_)));
        assert_eq!((self.hangs_on().await, self.grants()), (self.long_lease, grants));
    }

    async fn hangs_on(&mut self) -> i64 {
        self.raw.keys().await[0].1
    }

    fn grants(&self) -> u64 {
        self.raw.requests("Lease", "LeaseGrant")
    }

    async fn ends_well(mut self) {
        assert_eq!(self.driver.release(&self.longer).await.unwrap(), Release::Freed);
        self.driver.close().await;
        self.raw.is_clean().await;
    }
}

async fn answer_lost(server: Server) {
    let mut scene = Scene::new(&server).await;
    scene.proxy.answers().swallow();
    scene.ask_in_vain().await;
    assert_eq!(scene.hangs_on().await, scene.long_lease);
    scene.is_done_later().await;
    // What it hung on before is ended some time after.
    while scene.raw.leases().await.contains(&scene.short_lease) {
        tokio::time::sleep(millis(20)).await;
    }
    scene.ends_well().await;
}

async fn request_lost(server: Server) {
    let mut scene = Scene::new(&server).await;
    scene.proxy.requests().swallow();
    scene.ask_in_vain().await;
    assert_eq!(scene.hangs_on().await, scene.short_lease);
    scene.is_done_later().await;
    scene.ends_well().await;
}

async fn not_sent(server: Server) {
    let mut scene = Scene::new(&server).await;
    let grants = scene.grants();
    scene.proxy.refuse().await;
    scene.proxy.reset().await;
    while kind(scene.driver.renew(&scene.longer).await).0 != ErrorKind::Unreachable {}
    scene.proxy.accept().await;
    assert!(matches!(scene.renewed().await, Renewal::Held(_)));
    assert_eq!((scene.hangs_on().await, scene.grants()), (scene.long_lease, grants));
    scene.ends_well().await;
}

async fn lease_lost(server: Server) {
    let mut scene = Scene::new(&server).await;
    scene.proxy.requests().swallow();
    scene.ask_in_vain().await;
    let lost = scene.long_lease;
    scene.raw.client.lease_revoke(lost).await.unwrap();
    assert!(matches!(scene.renewed().await, Renewal::Held(_)));
    let lease = scene.hangs_on().await;
    let lease = scene.raw.client.lease_time_to_live(lease, None).await.unwrap();
    assert_eq!(lease.granted_ttl(), 600);
    scene.ends_well().await;
}

async fn moved_before(server: Server) {
    let mut scene = Scene::new(&server).await;
    let token = scene.token().await;
    scene.proxy.answers().swallow();
    scene.ask_in_vain().await;
    scene.raw.client.lease_revoke(scene.short_lease).await.unwrap();
    let grants = scene.grants();
    assert_eq!(scene.token().await, token);
    assert_eq!((scene.hangs_on().await, scene.grants()), (scene.long_lease, grants));
    assert!(matches!(scene.renewed().await, Renewal::Held(_)));
    scene.ends_well().await;
}

/// As when a strange hand puts the key anew.
async fn outlives(server: Server) {
    let mut scene = Scene::new(&server).await;
    let token = scene.token().await;
    scene.proxy.requests().swallow();
    scene.ask_in_vain().await;
    let key = scene.raw.keys().await.remove(0).0;
    let value = scene.raw.client.get(&*key, None).await.unwrap().kvs()[0].value().to_vec();
    scene.raw.client.put(&*key, value, None).await.unwrap();
    for lease in [scene.short_lease, scene.long_lease] {
        scene.raw.client.lease_revoke(lease).await.unwrap();
    }
    assert_eq!(scene.token().await, token);
    assert_eq!(scene.raw.leases().await, [scene.hangs_on().await]);
    assert!(matches!(scene.renewed().await, Renewal::Held(_)));
    scene.ends_well().await;
}

async fn key_gone(server: Server) {
    let mut scene = Scene::new(&server).await;
    scene.proxy.requests().swallow();
    scene.ask_in_vain().await;
    let key = scene.raw.keys().await.remove(0).0;
    scene.raw.client.delete(key, None).await.unwrap();
    assert_eq!(scene.renewed().await, Renewal::Lost);
    scene.driver.release(&scene.longer).await.unwrap();
    scene.driver.close().await;
    scene.raw.is_clean().await;
}

async fn released(server: Server) {
    for is_carried_out in [false, true] {
        let scene = Scene::new(&server).await;
        match is_carried_out {
            true => scene.proxy.answers().swallow(),
            false => scene.proxy.requests().swallow(),
        }
        scene.ask_in_vain().await;
        while scene.driver.release(&scene.longer).await.is_err() {}
        let mut raw = scene.raw;
        assert!(raw.keys().await.is_empty());
        scene.driver.close().await;
        raw.is_clean().await;
    }
}

/// A lease is granted, and then the key hung on it: each is answered within the limit, and both are
/// not.
async fn slow(server: Server) {
    let mut scene = Scene::new(&server).await;
    scene.longer = scene.longer.clone().with_ttl(2 * LONG);
    scene.proxy.answers().delay(millis(700));
    scene.ask_in_vain().await;
    assert!(matches!(scene.renewed().await, Renewal::Held(_)));
    scene.ends_well().await;
}

async fn nospace(server: Server) {
    let mut scene = Scene::new(&server).await;
    fill(&mut scene.raw).await;
    assert_eq!(kind(scene.driver.renew(&scene.longer).await).0, ErrorKind::Capacity);
    let short = scene.longer.clone().with_ttl(SHORT);
    for _ in 0..2 {
        match scene.driver.renew(&short).await.unwrap() {
            Renewal::Held(Vouch::Lease { ttl, .. }) => assert_eq!(ttl, SHORT),
            other => panic!("{other:?}"),
        }
    }
    let key = scene.raw.keys().await.remove(0).0;
    scene.raw.client.delete(key, None).await.unwrap();
    assert_eq!(scene.driver.renew(&short).await.unwrap(), Renewal::Lost);
    scene.driver.release(&short).await.unwrap();
    scene.driver.close().await;
    scene.raw.is_clean().await;
}

/// It would hang the key on a lease that is being revoked.
async fn late(server: Server) {
    // So long that none of these leases is kept alive meanwhile.
    const HOUR: Duration = Duration::from_secs(3600);
    let ([slow, fast], driver) = two_ways(&server, "").await;
    let mut raw = Raw::on(server.port()).await;
    let idle = [1, 2].map(|hours| named(&hours.to_string(), HOUR * hours));
    for claim in &idle {
        take(&driver, claim).await;
    }
    let leases: Vec<_> = raw.keys().await.into_iter().map(|(_, lease)| lease).collect();
    for claim in &idle {
        driver.release(claim).await.unwrap();
    }
    let claim = claim(SHORT);
    take(&driver, &claim).await;

    // Held on the one way, and carried out on the other.
    let put = slow.requests().hold(claim.owner().to_string());
    let [once, twice] = [1, 2].map(|hours| claim.clone().with_ttl(HOUR * hours));
    let (renewed, ()) = join(driver.renew(&once), async {
        put.caught().await;
        // What calls it off is lost.
        slow.requests().swallow();
    })
    .await;
    assert!(matches!(renewed.unwrap(), Renewal::Held(_)));
    let revoke = fast.requests().hold(keepalive(leases[0]));
    let (renewed, ()) = join(driver.renew(&twice), async {
        revoke.caught().await;
        let (_, before) = raw.begun_and_ended("Txn");
        put.go_on();
        while raw.begun_and_ended("Txn").1 == before {
            tokio::time::sleep(millis(5)).await;
        }
        revoke.go_on();
    })
    .await;
    assert!(matches!(renewed.unwrap(), Renewal::Held(_)));
    let keys = raw.keys().await;
    assert_eq!(keys.iter().map(|(_, lease)| *lease).collect::<Vec<_>>(), [leases[1]]);
}
