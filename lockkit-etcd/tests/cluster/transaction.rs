//! What a stale holder writes in etcd is refused.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use libtest_mimic::Trial;
use lockkit_core::driver::Driver;
use lockkit_core::{Hold, Lease, Locker, memory};
use lockkit_etcd::{EtcdDriver, transaction};
use lockkit_testkit::{ETCD, Proxy, Server, trial};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::support::{LONG, Raw, impatient_driver, millis};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_stale_holders_write_is_refused", || ETCD.start(), stale),
        trial("a_stopped_holders_write_is_refused", || ETCD.start(), stopped),
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

/// As long as this names a server, the program is the one that is stopped.
const HOLDER: &str = "LOCKKIT_TEST_ETCD_HOLDER";

/// A process of its own is stopped for longer than its lease. It writes first of all when it goes on.
async fn stopped(server: Server) {
    let mut raw = Raw::on(server.port()).await;
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.env(HOLDER, server.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.kill_on_drop(true).spawn().unwrap();
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(said.next_line().await.unwrap().as_deref(), Some("holds"));
    let id = i32::try_from(holder.id().unwrap()).unwrap();
    let signal = |signal| kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    let (driver, next) = both(&server.url(), LONG).await;
    let guard = next.lock("orders/42").unwrap().acquire().await.unwrap();
    assert!(write(&mut raw, &driver, &guard, "the second's").await);
    holder.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    signal(Signal::CONT);
    assert_eq!(said.next_line().await.unwrap().as_deref(), Some("written: false, held: false"));
    assert_eq!(said.next_line().await.unwrap().as_deref(), Some("lost"));
    let stock = raw.client.get("stock", None).await.unwrap();
    assert_eq!(stock.kvs()[0].value(), b"the second's");
    guard.release().await.unwrap();
}

/// What the holder does, if this process is to be one.
#[expect(clippy::print_stdout, reason = "the test reads what its process says")]
pub(crate) fn hold() -> Option<ExitCode> {
    let url = std::env::var(HOLDER).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (driver, locker) = both(&format!("{url}?call_limit=2s"), millis(2000)).await;
        let guard = locker.lock("orders/42").unwrap().acquire().await.unwrap();
        let port = url.rsplit(':').next().unwrap().parse().unwrap();
        let mut raw = Raw::on(port).await;
        println!("holds");
        // The runtime stands still meanwhile: nothing is renewed that could be told of a loss.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let written = write(&mut raw, &driver, &guard, "the first's").await;
        println!("written: {written}, held: {}", guard.is_held());
        guard.lost().await;
        println!("lost");
    });
    Some(ExitCode::SUCCESS)
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
