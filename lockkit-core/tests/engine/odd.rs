//! A driver that does what the memory driver never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, DriverError, Release, Renewal};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{Capabilities, Error, Lock, Locker, Operation};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{TTL, settle};

/// The memory driver, counted, with news when it is told so.
#[derive(Debug, Default)]
struct Odd {
    memory: MemoryDriver,
    renewals: AtomicUsize,
    releases: AtomicUsize,
    /// Whether renewals panic.
    panics: AtomicBool,
    news: Notify,
}

#[async_trait]
impl Driver for Odd {
    fn id(&self) -> &'static str {
        "odd"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.memory.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "planned");
        self.memory.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.releases.fetch_add(1, Ordering::Relaxed);
        self.memory.release(claim).await
    }

    async fn changed(&self, _: &Claim) -> Change {
        self.news.notified().await;
        Change::AskAgain
    }
}

fn set_up(ttl: Duration) -> (Arc<Odd>, Lock) {
    let driver = Arc::new(Odd::default());
    let locker = Locker::builder_from_arc(Arc::clone(&driver) as _).ttl(ttl).build().unwrap();
    let lock = locker.lock("a").unwrap();
    (driver, lock)
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_driver_panics_is_let_go() {
    let (driver, lock) = set_up(TTL);
    driver.panics.store(true, Ordering::Relaxed);
    let guard = lock.acquire().await.unwrap();
    guard.lost().await;
    settle().await;
    assert!(driver.memory.is_idle());
}

/// What there was news of may have come after the renewal was carried out.
#[tokio::test(start_paused = true)]
async fn news_during_a_renewal_has_it_repeated() {
    let (driver, lock) = set_up(TTL);
    driver.memory.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL / 10));
    let _guard = lock.acquire().await.unwrap();
    sleep(TTL * 35 / 100).await;
    driver.news.notify_one();
    settle().await;
    assert_eq!(driver.renewals.load(Ordering::Relaxed), 1, "they would overlap");
    sleep(TTL / 10).await;
    assert_eq!(driver.renewals.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_long_lease_leaves_in_doubt_costs_few_releases() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (driver, lock) = set_up(HOUR);
    driver.memory.faults().inject(Operation::Acquire, Fault::Delay(HOUR / 2));
    let start = Instant::now();
    let outcome = lock.try_acquire().await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    sleep_until(start + HOUR / 2).await;
    settle().await;
    assert!(!driver.memory.is_idle(), "it has not landed");
    sleep(HOUR / 8).await;
    assert!(driver.memory.is_idle(), "it is left alone");
    sleep(HOUR).await;
    let releases = driver.releases.load(Ordering::Relaxed);
    assert!((10..100).contains(&releases), "{releases}");
}
