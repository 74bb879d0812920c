//! A driver that does what the memory driver never does.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Clock, Driver, DriverError, Inspect, OwnerId, Release, Renewal,
};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{
    AcquireOptions, Capabilities, Diagnosis, Error, Holder, Lease, Lock, LockGuard, LockName,
    LockStatus, Locker, Namespace, Operation, Renew,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{TTL, settle};

/// The memory driver, counted, with news when it is told so.
#[derive(Debug, Default)]
struct Odd {
    memory: MemoryDriver,
    renewals: AtomicUsize,
    releases: AtomicUsize,
    /// What panics once it was carried out.
    panics: Mutex<Option<Operation>>,
    /// Whether the next release panics before it is carried out.
    panics_early: AtomicBool,
    /// Dropped by the next renewal that panics.
    guard: Mutex<Option<LockGuard>>,
    /// How long asks take to be sent.
    queued: Mutex<Duration>,
    /// How long answers to asks take.
    late: Mutex<Duration>,
    news: Notify,
    /// How often there is news at once.
    chatter: AtomicUsize,
}

impl Odd {
    fn panic_in(&self, operation: Operation) {
        *self.panics.lock().unwrap() = Some(operation);
    }

    fn perhaps_panic_in(&self, operation: Operation) {
        let planned = *self.panics.lock().unwrap();
        assert_ne!(planned, Some(operation), "planned");
    }
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
        let queued = *self.queued.lock().unwrap();
        sleep(queued).await;
        let attempt = self.memory.try_acquire(claim).await;
        self.perhaps_panic_in(Operation::Acquire);
        let late = *self.late.lock().unwrap();
        sleep(late).await;
        attempt
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        let renewal = self.memory.renew(claim).await;
        self.guard.lock().unwrap().take();
        self.perhaps_panic_in(Operation::Renew);
        renewal
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.releases.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics_early.swap(false, Ordering::Relaxed), "planned");
        self.memory.release(claim).await
    }

    async fn changed(&self, _: &Claim) -> Change {
        let chatter = self.chatter.load(Ordering::Relaxed);
        match chatter.checked_sub(1) {
            Some(rest) => self.chatter.store(rest, Ordering::Relaxed),
            None => self.news.notified().await,
        }
        Change::AskAgain
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

/// Breaks holds, in its own time, and lets nobody see anything.
#[async_trait]
impl Inspect for Odd {
    async fn look(&self, _: &LockName) -> Result<LockStatus, DriverError> {
        pending().await
    }

    async fn held(&self, _: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        pending().await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        sleep(TTL / 10).await;
        self.memory.break_hold(name, owner).await
    }

    async fn diagnose(&self, _: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        pending().await
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
    driver.panic_in(Operation::Renew);
    let guard = lock.acquire().await.unwrap();
    guard.lost().await;
    settle().await;
    assert!(driver.memory.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_released_though_its_last_renewal_panics() {
    for is_dropped in [true, false] {
        let driver = Arc::new(Odd::default());
        let builder = Locker::builder_from_arc(Arc::clone(&driver) as _).ttl(TTL);
        let locker = builder.clock(Clock::simulated()).build().unwrap();
        driver.panic_in(Operation::Renew);
        driver.memory.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL / 20));
        driver.memory.faults().inject(Operation::Release, Fault::LoseRequest);
        let guard = locker.lock("a").unwrap().acquire().await.unwrap();
        while driver.renewals.load(Ordering::Relaxed) == 0 {
            sleep(TTL / 100).await;
        }
        match is_dropped {
            true => {
                drop(guard);
                sleep(TTL / 3).await;
            }
            // Then it is lost.
            false => locker.shutdown().await,
        }
        assert!(driver.memory.is_idle(), "{is_dropped}");
    }
}

/// Whoever dropped it leaves the release to the keeper, which the panic ends.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_dropped_while_its_renewal_panics_is_released() {
    let (driver, lock) = set_up(TTL);
    driver.panic_in(Operation::Renew);
    let guard = lock.acquire().await.unwrap();
    *driver.guard.lock().unwrap() = Some(guard);
    sleep(TTL * 2 / 5).await;
    assert!(driver.memory.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_panics_is_repeated() {
    for dropped in [false, true] {
        let (driver, lock) = set_up(TTL);
        let guard = lock.acquire().await.unwrap();
        driver.panics_early.store(true, Ordering::Relaxed);
        match dropped {
            false => {
                let outcome = guard.release().await;
                let Err(Error::Unreachable(error)) = outcome else { panic!("{outcome:?}") };
                assert!(format!("{error:?}").contains("panicked"), "{error:?}");
            }
            true => drop(guard),
        }
        sleep(TTL / 10).await;
        assert!(driver.memory.is_idle(), "{dropped}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_for_a_break_and_not_for_who_only_looks() {
    let driver = Arc::new(Odd::default());
    let set_up = || {
        let builder = Locker::builder_from_arc(Arc::clone(&driver) as _).ttl(TTL);
        builder.clock(Clock::simulated()).build().unwrap()
    };
    let (locker, start) = (set_up(), Instant::now());
    let looks = async { tokio::join!(locker.look("a"), locker.held(), locker.diagnose()) };
    let both = async { tokio::join!(looks, locker.shutdown()) };
    let ((look, held, found), ()) = timeout(TTL * 10, both).await.unwrap();
    for outcome in [look.err(), held.err(), found.err()] {
        assert!(matches!(outcome, Some(Error::ShutDown { .. })), "{outcome:?}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);

    let (holder, locker) = (set_up(), set_up());
    let _guard = holder.lock("a").unwrap().acquire().await.unwrap();
    let (broken, ()) = tokio::join!(locker.break_hold("a", None), locker.shutdown());
    assert!(broken.unwrap().is_some());
}

/// It had to connect, or to wait for its turn.
#[tokio::test(start_paused = true)]
async fn what_a_driver_sent_late_is_cleaned_up() {
    let (driver, lock) = set_up(TTL);
    *driver.queued.lock().unwrap() = TTL * 9 / 10;
    driver.memory.faults().inject(Operation::Acquire, Fault::Delay(TTL / 2));
    let outcome = lock.try_acquire().await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    sleep(TTL * 4 / 5).await;
    assert!(driver.memory.is_idle());
}

/// What was asked has been done, and there is nobody to release it.
#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_driver_panics_fails_and_leaves_nothing() {
    for waits in [false, true] {
        let (driver, lock) = set_up(TTL);
        let before = if waits { Some(lock.acquire().await.unwrap()) } else { None };
        let acquiring = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await })
        };
        if waits {
            settle().await;
        }
        driver.panic_in(Operation::Acquire);
        driver.news.notify_waiters();
        // Whoever drives the ask has the panic: the caller, until it waits.
        match acquiring.await {
            Ok(outcome) => {
                let error = outcome.unwrap_err();
                assert!(waits && matches!(error, Error::Unreachable(_)), "{error:?}");
                let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
                assert!(text.contains("`a`") && text.contains("panicked"), "{text}");
            }
            Err(error) => assert!(!waits && error.is_panic(), "{error:?}"),
        }
        drop(before);
        settle().await;
        assert!(driver.memory.is_idle(), "{waits}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_whose_driver_panics_says_so_and_ends_no_hold() {
    let (driver, lock) = set_up(TTL);
    let lock = lock.leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    // So that it is a task by then, and the panic not the caller's.
    driver.memory.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL / 10));
    driver.panic_in(Operation::Renew);
    let outcome = guard.extend(TTL * 2).await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    assert!(format!("{outcome:?}").contains("panicked"), "{outcome:?}");
    assert!(guard.is_held());
}

/// The panic is the thread's, and not the driver's.
#[test]
fn what_is_acquired_while_a_thread_panics_is_held() {
    struct Last<'a>(&'a Runtime, &'a Lock, &'a mut Option<LockGuard>);
    impl Drop for Last<'_> {
        fn drop(&mut self) {
            let Self(runtime, lock, guard) = self;
            **guard = runtime.block_on(async { lock.acquire().await.ok() });
        }
    }
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let (driver, lock) = set_up(TTL);
    let mut guard = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _last = Last(&runtime, &lock, &mut guard);
        panic!("planned");
    }));
    runtime.block_on(settle());
    assert!(outcome.is_err() && guard.is_some_and(|guard| guard.is_held()));
    assert_eq!(driver.releases.load(Ordering::Relaxed), 0);
}

/// What the backend said meanwhile is heard only now.
#[tokio::test(start_paused = true)]
async fn a_machine_that_was_suspended_during_an_ask_has_not_heard_a_silence() {
    let (driver, clock) = (Arc::new(Odd::default()), Clock::simulated());
    *driver.late.lock().unwrap() = TTL / 10;
    let builder = Locker::builder_from_arc(Arc::clone(&driver) as _).ttl(TTL).clock(clock.clone());
    let lock = builder.build().unwrap().lock("a").unwrap();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    clock.suspend(TTL * 10);
    assert!(acquiring.await.unwrap().unwrap().is_held());
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
async fn a_hold_that_is_not_renewed_is_not_kept_busy_by_news_without_end() {
    const NEWS: usize = 1000;
    let (driver, lock) = set_up(TTL);
    let lock = lock.leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    driver.chatter.store(NEWS, Ordering::Relaxed);
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    guard.lost().await;
    let heard = NEWS - driver.chatter.load(Ordering::Relaxed);
    assert!((2..20).contains(&heard), "news was listened to {heard} times");
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
