//! Holders that may have missed news look for themselves.

use std::pin::pin;

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, Renewal};
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{ETCD, Proxy, Server, trial};
use tokio::time::timeout;

use crate::news::watched;
use crate::support::{LONG, Raw, claim, impatient_driver, millis};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_look_that_fails_is_done_again", || ETCD.start(), look_fails),
        trial("a_renewal_looks_for_everybody", || ETCD.start(), one_look),
        trial("news_does_not_wait_for_a_look", || ETCD.start(), beside_a_look),
    ]
}

/// A holder behind a proxy that has missed something, and its key.
async fn missed_something(
    server: &Server,
    call_limit: &str,
    meanwhile: impl AsyncFnOnce(&mut Raw, &str),
) -> (EtcdDriver, Claim, Proxy, Raw, String) {
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("{}?call_limit={call_limit}", server.url_at(proxy.addr()));
    let (driver, held) = (impatient_driver(&url).await, claim(LONG));
    let mut raw = Raw::on(server.port()).await;
    while driver.try_acquire(&held).await.is_err() {}
    assert!(poll!(pin!(driver.changed(&held))).is_pending());
    watched(&raw, 1).await;
    proxy.refuse().await;
    proxy.reset().await;
    let (key, _) = raw.keys().await.remove(0);
    meanwhile(&mut raw, &key).await;
    proxy.accept().await;
    while driver.changed(&held).await != Change::AskAgain {}
    (driver, held, proxy, raw, key)
}

async fn write(raw: &mut Raw, _: &str) {
    raw.client.put("other", "", None).await.unwrap();
}

async fn delete(raw: &mut Raw, key: &str) {
    raw.client.delete(key, None).await.unwrap();
}

/// The hold is not renewed, as some leases never are.
async fn look_fails(server: Server) {
    let (driver, held, proxy, _raw, key) = missed_something(&server, "500ms", delete).await;
    let look = proxy.requests().hold(&key);
    let mut told = pin!(driver.changed(&held));
    assert!(timeout(millis(700), &mut told).await.is_err(), "nobody has looked");
    look.caught().await;
    look.go_on();
    let lost = async {
        let mut news = told.await;
        while news != Change::Lost {
            news = driver.changed(&held).await;
        }
    };
    timeout(millis(60_000), lost).await.expect("nobody looks again");
}

async fn one_look(server: Server) {
    let (driver, held, proxy, raw, key) = missed_something(&server, "30s", write).await;
    let reads = raw.requests("KV", "Txn");
    let look = proxy.requests().hold(&key);
    let (mut renewal, mut told) = (pin!(driver.renew(&held)), pin!(driver.changed(&held)));
    assert!(poll!(&mut renewal).is_pending());
    look.caught().await;
    assert!(poll!(&mut told).is_pending());
    look.go_on();
    assert!(matches!(renewal.await.unwrap(), Renewal::Held(_)));
    assert!(timeout(millis(200), told).await.is_err(), "there is no news");
    assert_eq!(raw.requests("KV", "Txn") - reads, 1);
}

async fn beside_a_look(server: Server) {
    let (driver, held, proxy, mut raw, key) = missed_something(&server, "30s", write).await;
    let look = proxy.requests().hold(&key);
    let mut told = pin!(driver.changed(&held));
    assert!(poll!(&mut told).is_pending());
    look.caught().await;
    delete(&mut raw, &key).await;
    // The connection's own pings find out after 15 s.
    let news = timeout(millis(10_000), told).await.expect("it waits for the look");
    assert_eq!(news, Change::Lost);
}
