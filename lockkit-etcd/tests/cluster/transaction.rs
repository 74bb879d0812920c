//! What a stale holder writes in etcd is refused.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use libtest_mimic::Trial;
use lockkit_core::driver::Driver;
use lockkit_core::{Hold, Lease, Locker, memory};
use lockkit_etcd::{EtcdDriver, transaction};
use lockkit_testkit::{ETCD, Proxy, Server, trial};

use crate::support::{LONG, Raw, impatient_driver, millis};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_stale_holders_write_is_refused", || ETCD.start(), stale),
        trial("a_hold_of_another_driver_is_never_held", || ETCD.start(), other_driver),
    ]
}

/// Writes on behalf of whoever holds; whether it was let.
async fn write(raw: &mut Raw, driver: &EtcdDriver, hold: &Hold, value: &str) -> bool {
    let held = transaction::is_held(driver, hold);
    let write = Txn::new().when([held]).and_then([TxnOp::put("stock", value, None)]);
    raw.client.txn(write).await.unwrap().succeeded()
}

async fn stale(server: Server) {
    let proxy = Proxy::start(server.addr()).await;
    let (cut_off, paused) = both(&server.url_at(proxy.addr()), millis(2000)).await;
    let (driver, next) = both(&server.url(), LONG).await;
    let mut raw = Raw::on(server.port()).await;
    let stale = paused.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(write(&mut raw, &cut_off, &stale, "the first's").await);
    // It is not heard of for longer than its lease.
    proxy.requests().swallow();
    let holder = next.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(write(&mut raw, &driver, &holder, "the second's").await);
    assert!(!write(&mut raw, &cut_off, &stale, "the first's again").await);
    let stock = raw.client.get("stock", None).await.unwrap();
    assert_eq!(stock.kvs()[0].value(), b"the second's");
    let hold = holder.hold();
    holder.release().await.unwrap();
    assert!(!write(&mut raw, &driver, &hold, "the second's again").await, "it was let go");
}

/// A driver, and an application that locks with it.
async fn both(url: &str, ttl: Duration) -> (Arc<EtcdDriver>, Locker) {
    let driver = Arc::new(impatient_driver(url).await);
    let builder = Locker::builder_from_arc(Arc::clone(&driver) as Arc<dyn Driver>);
    (driver, builder.lease(Lease::new(ttl)).build().unwrap())
}

async fn other_driver(server: Server) {
    let mut raw = Raw::on(server.port()).await;
    let own = impatient_driver(&server.url()).await;
    let driver = memory::MemoryDriver::connect(&"memory:".parse().unwrap()).unwrap();
    let guard = Locker::new(driver).lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(!write(&mut raw, &own, &guard, "mine").await);
}
