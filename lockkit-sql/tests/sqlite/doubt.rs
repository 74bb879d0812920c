//! Rows that the clock cannot judge: of another boot or time namespace, or from the future.

use std::time::{Duration, Instant};

use lockkit_core::driver::{Attempt, Claim, Driver as _, Renewal};
use lockkit_sql::sqlite::SqliteDriver;

use crate::support::{Fixture, claim, execute, granted, number, refused, token};

const TTL: Duration = Duration::from_secs(2);

/// What is written by hand is judged by its TTL; the claim that wrote it was in no hurry.
const SHORT_TTL: &str = "UPDATE lockkit_hold SET ttl = 2000000, expires = expires - 58000000";

/// Asks often until granted; how long that took.
async fn waits_for(driver: &SqliteDriver, claim: &Claim) -> Duration {
    let start = Instant::now();
    for _ in 0..1_000 {
        let Attempt::Taken(taken) = driver.try_acquire(claim).await.unwrap() else {
            return start.elapsed();
        };
        // What is told is when it will be free, and never too long.
        assert!(taken.remaining().unwrap() <= TTL);
        tokio::time::sleep(TTL / 20).await;
    }
    panic!("never granted");
}

/// Whatever its expiry says: also one that is long past on our clock.
#[tokio::test]
async fn a_hold_on_another_clock_is_freed_once_unchanged_for_its_ttl() {
    for change in [
        "UPDATE lockkit_hold SET clock = 'an earlier boot:1'",
        "UPDATE lockkit_hold SET clock = 'an earlier boot:1', expires = 1",
        "UPDATE lockkit_hold SET clock = 'an earlier boot:1', expires = 9223372036854775807",
        "UPDATE lockkit_hold SET expires = expires + 3600000000",
        "UPDATE lockkit_hold SET expires = 9223372036854775807",
    ] {
        let fixture = Fixture::new();
        let driver = fixture.driver().await;
        let before = token(&driver, &claim("a")).await;
        let mut raw = fixture.raw().await;
        execute(&mut raw, SHORT_TTL).await;
        execute(&mut raw, change).await;
        let waited = waits_for(&driver, &claim("a")).await;
        assert!(waited >= TTL, "after {change}: taken after {waited:?}");
        assert!(token(&driver, &claim("b")).await > before);
    }
}

#[tokio::test]
async fn a_hold_on_another_clock_that_shows_life_stays() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, SHORT_TTL).await;
    execute(&mut raw, "UPDATE lockkit_hold SET clock = 'other'").await;
    let waiter = claim("a").waiting();
    // Renewed twice in each TTL, for three of them.
    for _ in 0..6 {
        refused(&driver, &waiter).await;
        refused(&driver, &waiter).await;
        tokio::time::sleep(TTL / 2).await;
        execute(&mut raw, "UPDATE lockkit_hold SET expires = expires + 1000000").await;
    }
    refused(&driver, &waiter).await;
    waits_for(&driver, &waiter).await;
}

/// What was watched is not removed when it changes at the last moment.
#[tokio::test]
async fn a_late_sign_of_life_counts() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("a")).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, SHORT_TTL).await;
    execute(&mut raw, "UPDATE lockkit_hold SET clock = 'other'").await;
    refused(&driver, &claim("a")).await;
    tokio::time::sleep(TTL).await;
    execute(&mut raw, "UPDATE lockkit_hold SET expires = expires + 1").await;
    refused(&driver, &claim("a")).await;
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_hold").await, 1);
}

#[tokio::test]
async fn a_place_on_another_clock_blocks_for_its_ttl() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let (holder, dead, alive) = (claim("a"), claim("a").fair(), claim("a").fair());
    granted(&driver, &holder).await;
    refused(&other, &dead).await;
    let elsewhere = "UPDATE lockkit_place SET clock = 'other', expires = 1, ttl = 2000000";
    execute(&mut fixture.raw().await, elsewhere).await;
    refused(&driver, &alive).await;
    driver.release(&holder).await.unwrap();
    refused(&driver, &alive).await;
    waits_for(&driver, &alive).await;
}

/// Its clock is not ours, so nobody here can say that it still stands.
#[tokio::test]
async fn a_hold_on_another_clock_is_not_renewed() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let claim = claim("a");
    granted(&driver, &claim).await;
    execute(&mut fixture.raw().await, "UPDATE lockkit_hold SET clock = 'other'").await;
    assert_eq!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
}
