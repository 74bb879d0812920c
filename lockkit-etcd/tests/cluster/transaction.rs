//! What a stale holder writes in etcd is refused.

use etcd_client::{Txn, TxnOp};
use libtest_mimic::Trial;
use lockkit_core::{Hold, Locker, memory};
use lockkit_etcd::transaction;
use lockkit_testkit::{ETCD, Proxy, Server, trial};

use crate::support::{LONG, Raw, locker, millis};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_stale_holders_write_is_refused", || ETCD.start(), stale),
        trial("a_hold_of_another_driver_is_never_held", || ETCD.start(), other_driver),
    ]
}

/// Writes on behalf of whoever holds; whether it was let.
async fn write(raw: &mut Raw, hold: &Hold, value: &str) -> bool {
    let write =
        Txn::new().when([transaction::is_held(hold)]).and_then([TxnOp::put("stock", value, None)]);
    raw.client.txn(write).await.unwrap().succeeded()
}

async fn stale(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let paused = locker(&server.url_at(proxy.addr()), millis(2000)).await;
    let next = locker(&server.url(), LONG).await;
    let mut raw = Raw::on(server.port()).await;
    let stale = paused.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(write(&mut raw, &stale, "the first's").await);
    // It is not heard of for longer than its lease.
    proxy.requests().swallow();
    let holder = next.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(write(&mut raw, &holder, "the second's").await);
    assert!(!write(&mut raw, &stale, "the first's again").await);
    let stock = raw.client.get("stock", None).await.unwrap();
    assert_eq!(stock.kvs()[0].value(), b"the second's");
    holder.release().await.unwrap();
}

async fn other_driver(server: Server) {
    let mut raw = Raw::on(server.port()).await;
    let driver = memory::MemoryDriver::connect(&"memory:".parse().unwrap()).unwrap();
    let guard = Locker::new(driver).lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(!write(&mut raw, &guard, "mine").await);
}
