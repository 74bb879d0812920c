//! What the events of `tracing` tell.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::time::Duration;

use lockkit::driver::ErrorKind;
use lockkit::memory::{Fault, MemoryDriver};
use lockkit::{Lease, Locker, Operation};
use lockkit_testkit::Log;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(9);

async fn scene() {
    let backend = MemoryDriver::new();
    let fail = |operation| {
        backend.faults().inject(operation, Fault::Fail(ErrorKind::Unreachable));
    };
    let locker = Locker::builder(backend.clone()).ttl(TTL).build().unwrap();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    fail(Operation::Renew);
    assert!(lock.acquire_timeout(TTL).await.is_err());
    locker.break_hold("a", None).await.unwrap();
    guard.lost().await;
    sleep(TTL).await;
    fail(Operation::Acquire);
    fail(Operation::Release);
    lock.run(async |_| ()).await.unwrap();
    sleep(TTL).await;
    let guard = lock.leased(Lease::new(TTL * 10)).unwrap().acquire().await.unwrap();
    // More than a shutdown has time for.
    for _ in 0..100 {
        fail(Operation::Release);
    }
    locker.shutdown().await;
    sleep(TTL).await;
    assert!(!guard.is_held());
}

#[test]
fn each_event_is_told_of_with_its_lock_and_owner() {
    let log = Log::start();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(scene());

    // Of those with the same message, the last.
    let events: BTreeMap<_, _> =
        log.events().into_iter().map(|event| (event.message.clone(), event)).collect();
    let page = include_str!("../../docs/metrics.md");
    let (_, page) = page.split_once("<!-- events -->\n").unwrap();
    let (page, _) = page.split_once("<!-- /events -->").unwrap();
    let told: Vec<_> = page.lines().skip(2).map(|row| row.rsplit_once(" | ").unwrap().0).collect();
    let seen = events
        .iter()
        .map(|(message, event)| format!("| `{message}` | {}", event.level.as_str().to_lowercase()));
    assert_eq!(Vec::from_iter(seen), told, "docs/metrics.md");
    for (message, event) in &events {
        let fields: Vec<_> = event.fields.iter().map(|(name, _)| *name).collect();
        let of_the_locker = fields.starts_with(&["driver"]);
        assert!(of_the_locker || fields.starts_with(&["lock", "owner"]), "{message}: {fields:?}");
    }
}
