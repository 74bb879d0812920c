//! Places in a queue that many take together, in bad weather.

use futures_util::future::{join, join_all};
use libtest_mimic::Trial;
use lockkit_core::driver::{Claim, Driver as _, ErrorKind, Release};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{ETCD, Proxy, Server, trial};

use crate::support::{LONG, Raw, claim, driver, granted, impatient_driver, kind, named, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("places_whose_answers_are_lost_are_found_again", || ETCD.start(), found_again),
        trial("a_place_that_goes_before_it_is_looked_at_is_taken_anew", || ETCD.start(), gone),
        trial("a_place_that_was_not_looked_at_is_unknown", || ETCD.start(), not_looked_at),
    ]
}

/// With leases that are there, so that those who take places are under way together.
async fn with_leases(driver: &EtcdDriver) -> Vec<Claim> {
    let names = ["one", "two", "three"].map(|name| named(name, LONG));
    for claim in &names {
        take(driver, claim).await;
    }
    for claim in &names {
        driver.release(claim).await.unwrap();
    }
    (0..names.len()).map(|_| claim(LONG).fair()).collect()
}

/// One enters the queue and looks at once, the others look together.
async fn found_again(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?call_limit=2s", server.url_at(proxy.addr()));
    let (one, far) = (driver(&server.url()).await, impatient_driver(&url).await);
    let mut raw = Raw::on(server.port()).await;
    let held = claim(LONG);
    take(&one, &held).await;
    let waiting = with_leases(&far).await;
    proxy.answers().swallow();
    for answer in join_all(waiting.iter().map(|claim| far.try_acquire(claim))).await {
        assert_eq!(kind(answer).0, ErrorKind::Unknown);
    }
    proxy.reset().await;
    proxy.answers().pass();
    let places = raw.keys().await;
    assert_eq!(places.len(), 4);
    let ask_again = async |claim| {
        while let Err(error) = far.try_acquire(claim).await {
            assert!(error.kind().is_transient(), "{error:?}");
        }
    };
    join_all(waiting.iter().map(ask_again)).await;
    assert_eq!(raw.keys().await, places);

    let mut order = Vec::new();
    for claim in &waiting {
        let key = raw.key_of(claim.owner()).await;
        order.push((places.iter().position(|(place, _)| *place == key), claim));
    }
    order.sort_by_key(|(at, _)| *at);
    one.release(&held).await.unwrap();
    for (_, claim) in order {
        granted(&far, claim).await;
        assert_eq!(far.release(claim).await.unwrap(), Release::Freed);
    }
}

async fn gone(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (one, far) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let mut raw = Raw::on(server.port()).await;
    let held = claim(LONG);
    take(&one, &held).await;
    let key = raw.keys().await.remove(0).0;
    let queue_end = [key.rsplit_once('/').unwrap().0, "0"].concat();
    let waiting = with_leases(&far).await;
    let first = proxy.requests().hold(&queue_end);
    let asks = join_all(waiting.iter().map(|claim| far.try_acquire(claim)));
    let tamper = async {
        first.caught().await;
        let look = proxy.requests().hold(&queue_end);
        first.go_on();
        look.caught().await;
        for (key, _) in raw.keys().await.split_off(1) {
            raw.client.delete(key, None).await.unwrap();
        }
        look.go_on();
    };
    let (answers, ()) = join(asks, tamper).await;
    let failed: Vec<_> = answers.into_iter().filter(Result::is_err).map(kind).collect();
    assert!(failed.len() >= 2, "{failed:?}");
    for (kind, text) in failed {
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
    }
    one.release(&held).await.unwrap();
    for claim in &waiting {
        while far.try_acquire(claim).await.is_err() {}
    }
    for claim in &waiting {
        far.release(claim).await.unwrap();
    }
    far.close().await;
    one.close().await;
    raw.is_clean().await;
}

/// Of those who take places together, the keys are put before anybody looks.
async fn not_looked_at(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (one, far) = (driver(&server.url()).await, driver(&server.url_at(proxy.addr())).await);
    let mut raw = Raw::on(server.port()).await;
    take(&one, &claim(LONG)).await;
    let key = raw.keys().await.remove(0).0;
    // What ends the range of a look at the queue.
    let queue_end = [key.rsplit_once('/').unwrap().0, "0"].concat();

    let waiting = with_leases(&far).await;
    let first = proxy.requests().hold(&queue_end);
    let asks = join_all(waiting.iter().map(|claim| far.try_acquire(claim)));
    let cut = async {
        first.caught().await;
        let look = proxy.requests().hold(&queue_end);
        first.go_on();
        look.caught().await;
        proxy.refuse().await;
        proxy.reset().await;
    };
    let (answers, ()) = join(asks, cut).await;
    let failed = answers.into_iter().filter(Result::is_err).map(|answer| kind(answer).0);
    let failed: Vec<_> = failed.collect();
    // The first has its answer, unless that was cut off as well.
    assert!(failed.len() >= 2, "{failed:?}");
    assert!(failed.iter().all(|kind| *kind == ErrorKind::Unknown), "{failed:?}");

    proxy.accept().await;
    for claim in &waiting {
        while far.release(claim).await.is_err() {}
    }
    assert_eq!(raw.keys().await.len(), 1);
}
