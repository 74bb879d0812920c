use std::time::Duration;

use lockkit_core::driver::{Change, Driver as _};
use tokio::time::timeout;

use crate::support::{Fixture, HANG, claim, execute, granted, has_news, refused};

#[tokio::test]
async fn a_release_wakes_a_waiter_of_another_driver_in_this_process() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let (holder, waiter) = (claim("a"), claim("a").waiting());
    granted(&a, &holder).await;
    refused(&b, &waiter).await;
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { (b.changed(&waiter).await, b) }
    });
    tokio::task::yield_now().await;
    a.release(&holder).await.unwrap();
    let (change, b) = timeout(HANG, waiting).await.unwrap().unwrap();
    assert_eq!(change, Change::AskAgain);
    granted(&b, &waiter).await;
}

#[tokio::test]
async fn news_waits_for_the_next_call() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holder, waiter) = (claim("a"), claim("a").waiting());
    granted(&driver, &holder).await;
    refused(&driver, &waiter).await;
    assert!(!has_news(&driver, &waiter).await, "news without a release");
    driver.release(&holder).await.unwrap();
    assert!(has_news(&driver, &waiter).await, "the release between two calls was missed");
    assert!(!has_news(&driver, &waiter).await, "old news");
}

#[tokio::test]
async fn who_was_woken_and_goes_away_wakes_the_next() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let holder = claim("a");
    granted(&a, &holder).await;
    let [first, second, elsewhere] = [claim("a"), claim("a"), claim("b")].map(|c| c.waiting());
    granted(&a, &claim("b")).await;
    refused(&a, &first).await;
    refused(&b, &second).await;
    refused(&b, &elsewhere).await;
    // Nobody listens: who asked last is about to.
    a.release(&holder).await.unwrap();
    assert!(!has_news(&a, &first).await, "one lock, two woken");
    b.release(&second).await.unwrap();
    assert!(has_news(&a, &first).await);
    assert!(!has_news(&b, &elsewhere).await, "woken for another lock");
}

/// Of many waiters of a locker only one listens, and perhaps it was not the first to ask.
#[tokio::test]
async fn a_release_wakes_one_that_listens() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let holder = claim("a");
    granted(&driver, &holder).await;
    let [first, second, third] = [(); 3].map(|()| claim("a").waiting());
    for waiter in [&first, &second, &third] {
        refused(&driver, waiter).await;
    }
    let waiting = async { timeout(HANG, driver.changed(&second)).await.unwrap() };
    let releasing = async { driver.release(&holder).await.unwrap() };
    // Polled in this order.
    let (change, _) = tokio::join!(waiting, releasing);
    assert_eq!(change, Change::AskAgain);
    for other in [&first, &third] {
        assert!(!has_news(&driver, other).await, "one lock, two woken");
    }
}

/// Who gives up while the database is busy, and for longer than a release is repeated.
#[tokio::test]
async fn who_could_not_release_swallows_no_news() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let holder = claim("a");
    granted(&driver, &holder).await;
    let [waiter, gone] = [(); 2].map(|()| claim("a").waiting());
    refused(&driver, &waiter).await;
    refused(&driver, &gone).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    driver.release(&gone.with_ttl(Duration::from_millis(200))).await.unwrap_err();
    execute(&mut raw, "ROLLBACK").await;
    // Nobody listens: who asked last is about to.
    driver.release(&holder).await.unwrap();
    assert!(has_news(&driver, &waiter).await);
}

/// A driver that ended in disorder, with its runtime perhaps, swallows no news.
#[tokio::test]
async fn a_driver_that_is_gone_is_not_woken() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let (holder, dead, alive) = (claim("a"), claim("a").waiting(), claim("a").waiting());
    granted(&a, &holder).await;
    refused(&b, &dead).await;
    refused(&a, &alive).await;
    drop(b);
    a.release(&holder).await.unwrap();
    assert!(has_news(&a, &alive).await);
}

/// Its claim may never be heard of again.
#[tokio::test]
async fn a_first_ask_that_fails_leaves_nobody_to_wake() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holder, lost) = (claim("a"), claim("a").with_ttl(Duration::from_millis(200)).waiting());
    let alive = claim("a").waiting();
    granted(&driver, &holder).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    driver.try_acquire(&lost).await.unwrap_err();
    execute(&mut raw, "ROLLBACK").await;
    refused(&driver, &alive).await;
    driver.release(&holder).await.unwrap();
    assert!(has_news(&driver, &alive).await);
}
