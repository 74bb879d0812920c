use futures_util::future::join_all;
use lockkit_core::driver::{Driver as _, Release, Renewal};
use sqlx::AssertSqlSafe;

use crate::support::{Fixture, LONG, claim, execute, granted, has_news, number, refused, token};

#[tokio::test]
async fn places_are_served_in_order_of_the_first_ask() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let holder = claim("a");
    let mut last = token(&a, &holder).await;
    let waiters = [claim("a").fair(), claim("a").fair(), claim("a").fair()];
    for waiter in &waiters {
        refused(&b, waiter).await;
    }
    // Asking again keeps the place.
    for waiter in waiters.iter().rev() {
        refused(&a, waiter).await;
        assert_eq!(b.renew(waiter).await.unwrap(), Renewal::Lost);
    }
    let mut before = &holder;
    for (at, waiter) in waiters.iter().enumerate() {
        assert_eq!(a.release(before).await.unwrap(), Release::Freed);
        for later in waiters[at + 1..].iter().rev() {
            refused(&a, later).await;
        }
        let next = token(&a, waiter).await;
        assert!(next > last);
        (before, last) = (waiter, next);
    }
}

#[tokio::test]
async fn nobody_overtakes_the_queue() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (holder, fair) = (claim("a"), claim("a").fair());
    granted(&driver, &holder).await;
    refused(&driver, &fair).await;
    driver.release(&holder).await.unwrap();
    for plain in [claim("a"), claim("a").waiting(), claim("a").fair(), holder] {
        let taken = refused(&driver, &plain).await;
        assert!(taken.remaining().is_some(), "nothing said about the place before it");
    }
    granted(&driver, &fair).await;
}

#[tokio::test]
async fn only_fair_claims_leave_a_place_and_release_removes_it() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut raw = fixture.raw().await;
    let places = "SELECT count(*) FROM lockkit_place";
    granted(&driver, &claim("a")).await;
    for plain in [claim("a"), claim("a").waiting()] {
        refused(&driver, &plain).await;
    }
    assert_eq!(number(&mut raw, places).await, 0);
    let fair = claim("a").fair();
    refused(&driver, &fair).await;
    assert_eq!(number(&mut raw, places).await, 1);
    assert_eq!(driver.release(&fair).await.unwrap(), Release::NotHeld);
    assert_eq!(number(&mut raw, places).await, 0);
}

#[tokio::test]
async fn a_dead_waiter_does_not_block() {
    let fixture = Fixture::new();
    let (driver, elsewhere) = (fixture.driver().await, fixture.driver().await);
    let (holder, dead, alive) = (claim("a"), claim("a").fair(), claim("a").fair());
    granted(&driver, &holder).await;
    refused(&elsewhere, &dead).await;
    refused(&driver, &alive).await;
    driver.release(&holder).await.unwrap();
    let taken = refused(&driver, &alive).await;
    assert!(taken.remaining().unwrap() > LONG / 2, "nothing said about the place before it");
    let mut raw = fixture.raw().await;
    let run_out = "UPDATE lockkit_place SET expires = expires - ttl WHERE arrival = 1";
    assert_eq!(execute(&mut raw, run_out).await, 1);
    granted(&driver, &alive).await;
    let places = number(&mut raw, "SELECT count(*) FROM lockkit_place").await;
    assert_eq!(places, 0, "the dead place is still there");
}

/// The writes of those who wait would otherwise slow those who hold.
#[tokio::test]
async fn a_waiter_with_a_fresh_place_only_reads() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    let (plain, fair) = (claim("a").waiting(), claim("a").fair());
    for waiter in [&plain, &fair] {
        refused(&driver, waiter).await;
    }
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    for waiter in [&plain, &fair] {
        refused(&driver, waiter).await;
    }
    execute(&mut raw, "ROLLBACK").await;

    // A place that is no longer fresh is refreshed.
    let expires = "SELECT expires FROM lockkit_place";
    let stale = number(&mut raw, expires).await - 20_000_000;
    sqlx::query("UPDATE lockkit_place SET expires = $1")
        .bind(stale)
        .execute(&mut raw)
        .await
        .unwrap();
    refused(&driver, &fair).await;
    assert!(number(&mut raw, expires).await > stale);
    // And one that is gone is made anew.
    execute(&mut raw, "DELETE FROM lockkit_place").await;
    refused(&driver, &fair).await;
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_place").await, 1);
}

#[tokio::test]
async fn those_behind_others_are_refreshed_together() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    let waiters: Vec<_> = (0..10).map(|_| claim("a").fair()).collect();
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    let mut raw = fixture.raw().await;
    let gone = waiters[1].owner().to_string();
    let leave = format!("DELETE FROM lockkit_place WHERE owner = '{gone}'");
    execute(&mut raw, AssertSqlSafe(leave)).await;
    let stale = "UPDATE lockkit_place SET expires = expires - ttl / 2";
    assert_eq!(execute(&mut raw, stale).await, 9);
    let asks = waiters[1..].iter().map(|waiter| refused(&driver, waiter));
    for taken in join_all(asks).await {
        assert!(taken.is_heard());
    }
    let mut raw = fixture.raw().await;
    let fresh = "SELECT count(*) FROM lockkit_place AS first, lockkit_place AS later \
                 WHERE first.arrival = 1 AND later.expires >= first.expires + first.ttl / 2";
    assert_eq!(number(&mut raw, fresh).await, 9, "all but the first");
    let requests = "SELECT count(DISTINCT expires) FROM lockkit_place \
                    WHERE arrival > 1 AND arrival < (SELECT max(arrival) FROM lockkit_place)";
    assert_eq!(number(&mut raw, requests).await, 1);
    // Which was not there any more stands behind the others now.
    let last = format!(
        "SELECT max(arrival) = (SELECT arrival FROM lockkit_place WHERE owner = '{gone}') \
                        FROM lockkit_place"
    );
    assert_eq!(number(&mut raw, AssertSqlSafe(last)).await, 1);
}

/// Another process can break the hold, and tells nobody.
#[tokio::test]
async fn who_stands_behind_a_new_holder_is_told_to_ask() {
    let fixture = Fixture::new();
    let (driver, elsewhere) = (fixture.driver().await, fixture.driver().await);
    let holder = claim("a");
    granted(&driver, &holder).await;
    let [first, second, third] = [(); 3].map(|()| claim("a").fair());
    for waiter in [&first, &second, &third] {
        refused(&driver, waiter).await;
    }
    driver.release(&holder).await.unwrap();
    granted(&driver, &first).await;
    assert!(has_news(&driver, &second).await);
    assert!(!has_news(&driver, &third).await);
    assert!(!refused(&driver, &second).await.is_heard(), "it would not ask");
    let inspect = elsewhere.inspect().unwrap();
    inspect.break_hold(first.name(), Some(first.owner())).await.unwrap().unwrap();
    granted(&driver, &second).await;
}

#[tokio::test]
async fn the_first_place_is_woken_and_no_other() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let holder = claim("a");
    granted(&a, &holder).await;
    let (plain, first, second) = (claim("a").waiting(), claim("a").fair(), claim("a").fair());
    refused(&a, &plain).await;
    refused(&b, &first).await;
    refused(&a, &second).await;
    a.release(&holder).await.unwrap();
    assert!(!has_news(&a, &plain).await);
    assert!(!has_news(&a, &second).await);
    assert!(has_news(&b, &first).await);
    // It goes away without taking the lock.
    b.release(&first).await.unwrap();
    assert!(has_news(&a, &second).await);
    granted(&a, &second).await;
}
