use std::sync::Arc;

use lockkit_core::driver::{Driver as _, Release, Renewal, Vouch};
use lockkit_core::{AcquireOptions, Locker, Wait};
use tokio::time::timeout;

use crate::support::{Fixture, HANG, claim, granted, refused, token};

#[tokio::test]
async fn a_hold_is_good_for_as_long_as_the_process() {
    let fixture = Fixture::new();
    let (driver, claim) = (fixture.driver().await, claim("a"));
    assert_eq!(granted(&driver, &claim).await.vouched(), Vouch::WhileAlive);
    assert_eq!(driver.renew(&claim).await.unwrap(), Renewal::Held(Vouch::WhileAlive));
    let guard = Locker::new(driver).lock("b").unwrap().acquire().await.unwrap();
    assert_eq!(guard.valid_for(), None);
}

#[tokio::test]
async fn a_repeated_ask_writes_nothing() {
    let fixture = Fixture::new();
    let (driver, claim) = (fixture.driver().await, claim("a"));
    let first = token(&driver, &claim).await;
    let written = std::fs::read(fixture.file("a")).unwrap();
    assert_eq!(token(&driver, &claim).await, first);
    assert_eq!(std::fs::read(fixture.file("a")).unwrap(), written);
}

#[tokio::test]
async fn the_holds_of_a_driver_end_with_it() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let held = claim("a");
    granted(&driver, &held).await;
    refused(&other, &claim("a")).await;
    driver.close().await;
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);

    granted(&driver, &held).await;
    drop(driver);
    granted(&other, &claim("a")).await;
}

/// As when its runtime is shut down.
async fn start_and_drop(request: impl Future) {
    tokio::select! {
        biased;
        // Some thread was fast.
        _ = request => (),
        () = std::future::ready(()) => (),
    }
}

#[tokio::test]
async fn what_a_dropped_ask_took_is_released() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let dropped = claim("a");
    start_and_drop(driver.try_acquire(&dropped)).await;
    assert_eq!(driver.release(&dropped).await.unwrap(), Release::Freed);
    granted(&other, &claim("a")).await;
}

#[tokio::test]
async fn a_dropped_release_is_carried_out() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    start_and_drop(driver.release(&held)).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    granted(&driver, &claim("a")).await;
}

/// The runtime has one thread: if one of them blocked it, nothing else would happen.
#[tokio::test]
async fn a_hundred_waiters_block_nobody() {
    let fixture = Fixture::new();
    let holder = fixture.driver().await;
    let held = claim("a");
    granted(&holder, &held).await;
    let mut waiters = Vec::new();
    for _ in 0..100 {
        let lock = Locker::new(fixture.driver().await).lock("a").unwrap();
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await }));
    }
    let elsewhere = Locker::new(fixture.driver().await).lock("b").unwrap();
    for _ in 0..20 {
        let guard = timeout(HANG, elsewhere.acquire()).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    holder.release(&held).await.unwrap();
    for waiter in waiters {
        timeout(HANG, waiter).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_among_drivers_that_contend() {
    let fixture = Fixture::new();
    let last = Arc::new(std::sync::Mutex::new(None));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let lock = Locker::new(fixture.driver().await).lock("a").unwrap();
        let last = Arc::clone(&last);
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                let options = AcquireOptions::new().wait(Wait::AtMost(HANG));
                let guard = lock.acquire_with(options).await.unwrap();
                let token = guard.fencing_token();
                let before = last.lock().unwrap().replace(token);
                assert!(before < Some(token), "{token:?} after {before:?}");
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// The kernel keeps what a descriptor holds, whatever became of the runtime.
#[test]
fn a_locker_without_its_runtime_lets_go_when_it_is_shut_down() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = Fixture::new();
    let first = runtime();
    let (locker, _guard) = first.block_on(async {
        let locker = Locker::new(fixture.driver().await);
        let guard = locker.lock("a").unwrap().acquire().await.unwrap();
        (locker, guard)
    });
    drop(first);
    runtime().block_on(async {
        locker.shutdown().await;
        granted(&fixture.driver().await, &claim("a")).await;
    });
}
