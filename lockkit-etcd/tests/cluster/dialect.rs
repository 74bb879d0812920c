//! Locks shared with clients that use the server's own lock service, or `etcdctl lock`, or the
//! package `concurrency` of Go, which are one recipe.

use etcd_client::LockOptions;
use libtest_mimic::Trial;
use lockkit_core::driver::Driver;
use lockkit_etcd::EtcdDriver;
use lockkit_testkit::{ETCD, Server, trial};

use crate::support::{LONG, Raw, claim, granted, millis, refused, take};

/// What the others call the lock that we call `orders/42`.
const NAME: &str = "lockkit/orders%2f42";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("foreign_keys_are_as_the_server_has_them", || ETCD.start(), layout),
        trial("we_wait_for_the_servers_own_locks", || ETCD.start(), we_wait),
        trial("the_servers_own_locks_wait_for_us", || ETCD.start(), they_wait),
        trial("a_foreign_hold_can_be_seen_and_broken", || ETCD.start(), broken),
    ]
}

async fn driver(server: &Server) -> EtcdDriver {
    let url = format!("{}?call_limit=10s&dialect=etcdctl", server.url());
    EtcdDriver::connect(&url.parse().unwrap()).await.unwrap()
}

/// Takes the lock as they do, and returns their key.
async fn lock(mut raw: Raw) -> String {
    let lease = raw.client.lease_grant(60, None).await.unwrap().id();
    let options = LockOptions::new().with_lease(lease);
    let locked = raw.client.lock(NAME, Some(options)).await.unwrap();
    String::from_utf8(locked.key().to_vec()).unwrap()
}

async fn layout(server: Server) {
    let driver = driver(&server).await;
    let mut raw = Raw::on(server.port()).await;
    let ours = claim(LONG);
    take(&driver, &ours).await;
    let lease = raw.leases().await[0];
    let keys = raw.keys_under(NAME).await;
    assert_eq!(keys, [(format!("{NAME}/{lease:x}"), lease)]);
    driver.release(&ours).await.unwrap();
    let key = lock(Raw::on(server.port()).await).await;
    let keys = raw.keys_under(NAME).await;
    assert_eq!(keys, [(key.clone(), keys[0].1)]);
    assert_eq!(key, format!("{NAME}/{:x}", keys[0].1));
}

async fn we_wait(server: Server) {
    let driver = driver(&server).await;
    let mut raw = Raw::on(server.port()).await;
    let key = lock(Raw::on(server.port()).await).await;
    let waiting = claim(LONG).fair();
    refused(&driver, &claim(LONG)).await;
    refused(&driver, &waiting).await;
    raw.client.unlock(key).await.unwrap();
    granted(&driver, &waiting).await;
}

async fn they_wait(server: Server) {
    let driver = driver(&server).await;
    let mut raw = Raw::on(server.port()).await;
    let ours = claim(LONG);
    let token = take(&driver, &ours).await;
    let theirs = tokio::spawn(lock(Raw::on(server.port()).await));
    while raw.keys_under(NAME).await.len() < 2 {
        tokio::time::sleep(millis(5)).await;
    }
    // First come, first served: they are next, whoever asks of ours.
    let waiting = claim(LONG).fair();
    refused(&driver, &waiting).await;
    driver.release(&ours).await.unwrap();
    let key = theirs.await.unwrap();
    let theirs = raw.client.get(key.clone(), None).await.unwrap();
    assert!(theirs.kvs()[0].create_revision() > i64::try_from(token.get()).unwrap());
    refused(&driver, &waiting).await;
    raw.client.unlock(key).await.unwrap();
    granted(&driver, &waiting).await;
}

async fn broken(server: Server) {
    let driver = driver(&server).await;
    let mut raw = Raw::on(server.port()).await;
    lock(Raw::on(server.port()).await).await;
    let waiting = claim(LONG).fair();
    refused(&driver, &waiting).await;
    let inspect = driver.inspect().unwrap();
    let status = inspect.look(waiting.name()).await.unwrap();
    let holder = status.holder().unwrap();
    assert!(holder.label().is_none() && holder.remaining().is_some(), "{status:?}");
    assert_eq!(status.waiters()[0].owner(), waiting.owner());
    let held = inspect.held(waiting.name().namespace()).await.unwrap();
    assert_eq!(held[0].name(), waiting.name());
    inspect.break_hold(waiting.name(), Some(holder.owner())).await.unwrap().unwrap();
    granted(&driver, &waiting).await;
    assert_eq!(raw.keys_under(NAME).await.len(), 1);
}
