//! Clusters of three that lose their leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use lockkit_core::FencingToken;
use lockkit_core::driver::Driver;
use lockkit_testkit::{ETCD, Ensemble, Proxy, trial};
use tokio::sync::mpsc;

use crate::support::{LONG, Raw, claim, driver, locker, millis, take};

pub(crate) fn trials() -> Vec<Trial> {
    let three = || ETCD.start_ensemble(3);
    vec![
        trial("a_leader_is_killed_while_one_holds_and_five_wait", three, |ensemble| async move {
            in_a_change_of_leader(&ensemble, |leader| ensemble.members()[leader].kill()).await;
        }),
        trial("a_leader_is_stopped_while_one_holds_and_five_wait", three, |ensemble| async move {
            in_a_change_of_leader(&ensemble, |leader| ensemble.members()[leader].stop().unwrap())
                .await;
        }),
        trial("the_member_in_use_may_go", three, gone),
        trial("a_member_that_is_down_is_in_nobodys_way", three, down),
    ]
}

/// One holds and five wait. The leader fails; then the first lets go, and one after another is
/// served, with never two at once and with tokens that rise.
async fn in_a_change_of_leader(ensemble: &Ensemble, fail: impl FnOnce(usize)) {
    const WAITERS: usize = 5;
    let (url, ttl) = (ensemble.url(), millis(10_000));
    let inside = Arc::new(AtomicUsize::new(0));
    let (served, mut order) = mpsc::unbounded_channel();
    let first = locker(&url, ttl).await.lock("orders/42").unwrap().acquire().await.unwrap();
    let own = driver(&url).await;
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let lock = locker(&url, ttl).await.lock("orders/42").unwrap();
        let (served, inside) = (served.clone(), Arc::clone(&inside));
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
            tokio::time::sleep(millis(20)).await;
            assert!(guard.is_held());
            served.send((number, guard.fencing_token().unwrap())).unwrap();
            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
            guard.release().await
        }));
        // In this order.
        while own.inspect().unwrap().look(first.name()).await.unwrap().waiters().len() <= number {
            tokio::time::sleep(millis(5)).await;
        }
    }
    fail(ensemble.leader());
    let mut last: FencingToken = first.fencing_token().unwrap();
    assert!(first.is_held());
    // An error is an answer that did not come in time; the keeper goes on.
    _ = first.release().await;
    for expected in 0..WAITERS {
        let (number, token) = order.recv().await.unwrap();
        assert_eq!(number, expected, "out of order");
        assert!(token > last);
        last = token;
    }
    for waiter in waiters {
        _ = waiter.await.unwrap();
    }
}

async fn gone(ensemble: Ensemble) {
    let mut proxies = Vec::new();
    for member in ensemble.members() {
        proxies.push(Proxy::start(member.addr()).await);
    }
    let ports: Vec<u16> = proxies.iter().map(|proxy| proxy.addr().port()).collect();
    let locker = locker(&ensemble.url_at(&ports), millis(15_000)).await;
    let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
    let in_use = proxies.iter().position(|proxy| proxy.open() > 0).unwrap();
    ensemble.members()[in_use].kill();
    let other = &ensemble.members()[ensemble.leader()];
    let mut raw = Raw::on(other.port()).await;
    // Time goes by at the cluster for longer than the lease lasts.
    let lease = raw.client.lease_grant(18, None).await.unwrap().id();
    while raw.leases().await.contains(&lease) {
        tokio::time::sleep(millis(50)).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(raw.keys().await.is_empty());
}

async fn down(ensemble: Ensemble) {
    let drivers: Vec<_> = {
        let mut drivers = Vec::new();
        for _ in 0..6 {
            drivers.push(driver(&ensemble.url()).await);
        }
        drivers
    };
    let leader = ensemble.leader();
    ensemble.members()[(leader + 1) % 3].kill();
    for driver in drivers {
        let first = claim(LONG);
        while driver.try_acquire(&first).await.is_err() {}
        while driver.release(&first).await.is_err() {}
        // From then on it goes past the member that is down, each time.
        for _ in 0..50 {
            let claim = claim(LONG);
            take(&driver, &claim).await;
            driver.release(&claim).await.unwrap();
        }
    }
}
