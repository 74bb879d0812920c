use futures_util::future::join_all;
use lockkit_core::driver::{Claim, Driver as _, ErrorKind, Release, Renewal};
use lockkit_core::{LockName, Namespace};

use crate::support::{
    Fixture, LONG, claim, execute, granted, number, refused, token, told_by_driver,
};

/// What is not there to be renewed.
const LOST: [&str; 2] = ["gone", "over"];

const RUN_OUT: &str = "UPDATE lockkit_hold SET expires = expires - ttl";

#[tokio::test]
async fn a_lock_is_held_by_one_owner() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.driver().await, fixture.driver().await);
    let (first, second) = (claim("a"), claim("a"));
    granted(&a, &first).await;
    for driver in [&a, &b] {
        let free_in = refused(driver, &second).await.remaining().unwrap();
        assert!(free_in <= LONG && free_in > LONG / 2, "{free_in:?}");
        assert_eq!(driver.renew(&second).await.unwrap(), Renewal::Lost);
        assert_eq!(driver.release(&second).await.unwrap(), Release::NotHeld);
    }
    granted(&a, &claim("A")).await;
    // Any connection can serve a claim.
    assert!(matches!(b.renew(&first).await.unwrap(), Renewal::Held(_)));
    assert_eq!(b.release(&first).await.unwrap(), Release::Freed);
    assert_eq!(b.release(&first).await.unwrap(), Release::NotHeld);
    assert_eq!(a.renew(&first).await.unwrap(), Renewal::Lost);
    granted(&a, &second).await;
}

#[tokio::test]
async fn a_repeated_ask_is_the_same_grant_until_it_ends() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let (claim, successor) = (claim("a"), claim("a"));
    let first = token(&driver, &claim).await;
    assert_eq!(token(&driver, &claim).await, first);
    driver.release(&claim).await.unwrap();
    let second = token(&driver, &claim).await;
    assert!(second > first);
    execute(&mut fixture.raw().await, RUN_OUT).await;
    assert_eq!(driver.renew(&claim).await.unwrap(), Renewal::Lost);
    let third = token(&driver, &successor).await;
    assert!(third > second);
    assert_eq!(driver.release(&claim).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.release(&successor).await.unwrap(), Release::Freed);
    assert!(token(&driver, &claim).await > third);
}

#[tokio::test]
async fn no_request_shortens_a_lease() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let long = claim("a");
    granted(&driver, &long).await;
    let mut raw = fixture.raw().await;
    let expires = "SELECT expires FROM lockkit_hold";
    let before = number(&mut raw, expires).await;
    let short = long.clone().with_ttl(LONG / 2);
    driver.renew(&short).await.unwrap();
    granted(&driver, &short).await;
    assert_eq!(number(&mut raw, expires).await, before);
    driver.renew(&long).await.unwrap();
    let renewed = number(&mut raw, expires).await;
    assert!(renewed > before);
    granted(&driver, &long).await;
    assert!(number(&mut raw, expires).await > renewed);
}

#[tokio::test]
async fn holds_are_renewed_together() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let names =
        ["first", "a", "A", "it's", "\"quoted\"", "back\\slash", "[\"a\"]", "ü", "gone", "over"];
    let claims = names.map(claim);
    for claim in &claims {
        granted(&driver, claim).await;
    }
    let elsewhere =
        Claim::new(LockName::new(&Namespace::new("other").unwrap(), "a").unwrap(), LONG);
    granted(&driver, &elsewhere).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, "UPDATE lockkit_hold SET expires = expires - ttl / 2").await;
    execute(&mut raw, "UPDATE lockkit_hold SET owner = 'another' WHERE name = 'gone'").await;
    execute(&mut raw, "UPDATE lockkit_hold SET expires = expires - ttl WHERE name = 'over'").await;
    let renewed = join_all(claims.iter().map(|claim| driver.renew(claim))).await;
    for (name, renewal) in names.iter().zip(renewed) {
        assert_eq!(renewal.unwrap() == Renewal::Lost, LOST.contains(name), "{name}");
    }
    let fresh = "SELECT min(expires) FROM lockkit_hold \
                 WHERE expires > since AND owner <> 'another' AND namespace <> 'other'";
    let stale =
        "SELECT max(expires) FROM lockkit_hold WHERE owner = 'another' OR namespace = 'other'";
    let (fresh, stale) = (number(&mut raw, fresh).await, number(&mut raw, stale).await);
    assert!(fresh >= stale + 25_000_000, "what is left of others is not changed");
    let requests = "SELECT count(DISTINCT expires) FROM lockkit_hold \
                    WHERE expires > since AND owner <> 'another' AND namespace <> 'other'";
    // Again, if that took the machine longer than they gather for.
    for _ in 0..50 {
        if number(&mut raw, requests).await == 2 {
            break;
        }
        join_all(claims.iter().map(|claim| driver.renew(claim))).await;
    }
    assert_eq!(number(&mut raw, requests).await, 2, "the first alone, and the rest");
    // A lease of another length is another request.
    let short = claims[0].clone().with_ttl(LONG / 10);
    let renewals = [&claims[1], &claims[2], &short].map(|claim| driver.renew(claim));
    for renewal in join_all(renewals).await {
        assert_ne!(renewal.unwrap(), Renewal::Lost);
    }
    assert_eq!(number(&mut raw, "SELECT min(ttl) FROM lockkit_hold").await, 60_000_000);
}

#[tokio::test]
async fn tokens_rise_over_a_deleted_database() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let before = token(&driver, &claim("a")).await;
    driver.close().await;
    drop(driver);
    std::fs::remove_dir_all(fixture.folder()).unwrap();
    std::fs::create_dir(fixture.folder()).unwrap();
    assert!(token(&fixture.driver().await, &claim("a")).await > before);
}

/// Also while the wall clock is behind the tokens that were given.
#[tokio::test]
async fn tokens_rise_when_the_wall_clock_falls_back() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let ahead = i64::MAX - 2;
    let mut raw = fixture.raw().await;
    sqlx::query("UPDATE lockkit_counter SET last = $1")
        .bind(ahead)
        .execute(&mut raw)
        .await
        .unwrap();
    for beyond in 1..=2 {
        let claim = claim("a");
        assert_eq!(token(&driver, &claim).await, ahead as u64 + beyond);
        driver.release(&claim).await.unwrap();
    }
    // Used up: refused rather than repeated, and nothing else suffers.
    let error = driver.try_acquire(&claim("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{}", told_by_driver(error));
    assert_eq!(number(&mut raw, "SELECT count(*) FROM lockkit_hold").await, 0);
    execute(&mut raw, "UPDATE lockkit_counter SET last = 0").await;
    granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn names_are_data() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let names =
        ["'; DROP TABLE lockkit_hold; --", "\"a\"", "$1", "?1", "%", "a' OR '1'='1", "ü", "Ü"];
    for text in names {
        granted(&driver, &claim(text)).await;
    }
    for text in names {
        refused(&driver, &claim(text)).await;
    }
    let other = Namespace::new("other").unwrap();
    granted(&driver, &Claim::new(LockName::new(&other, "ü").unwrap(), LONG)).await;
    let mut raw = fixture.raw().await;
    let rows = number(&mut raw, "SELECT count(*) FROM lockkit_hold").await;
    assert_eq!(rows, names.len() as i64 + 1);
}

/// What dead holders leave under names that nobody asks for again does not pile up.
#[tokio::test]
async fn opening_sweeps_what_has_run_out() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let before = token(&driver, &claim("dead")).await;
    let mut raw = fixture.raw().await;
    execute(&mut raw, RUN_OUT).await;
    granted(&driver, &claim("alive")).await;

    let driver = fixture.driver().await;
    let names: Vec<String> =
        sqlx::query_scalar("SELECT name FROM lockkit_hold").fetch_all(&mut raw).await.unwrap();
    assert_eq!(names, ["alive"]);
    assert!(token(&driver, &claim("dead")).await > before);
}
