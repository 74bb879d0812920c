//! Fencing tokens: rising whatever the clock does, exact, and refused rather than repeated.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, ErrorKind, Release};
use lockkit_testkit::{REDIS, Server, trial};

use crate::support::{LONG, Raw, claim, driver, kind, refused, take};

const BUCKET: &str = "{lockkit:362}:bucket";
/// 2^53 - 1: the last number up to which a Lua number skips none.
const LAST: u64 = 9_007_199_254_740_991;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_token_is_the_servers_clock_in_microseconds", || REDIS.start(), clock),
        trial("tokens_rise_while_the_clock_is_behind", || REDIS.start(), ahead),
        trial("used_up_tokens_are_refused", || REDIS.start(), used_up),
    ]
}

async fn clock(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let time = |(seconds, micros): (u64, u64)| seconds * 1_000_000 + micros;
    let before = time(raw.ask(&["TIME"]).await);
    let token = take(&driver, &claim(LONG)).await.get();
    let after = time(raw.ask(&["TIME"]).await);
    assert!((before..=after).contains(&token), "{before} {token} {after}");
}

async fn ahead(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let ahead = (LAST - 1000).to_string();
    raw.ask::<()>(&["HSET", BUCKET, "layout", "1", "token", &ahead]).await;
    for step in 1..=3 {
        let claim = claim(LONG);
        assert_eq!(take(&driver, &claim).await.get(), LAST - 1000 + step);
        driver.release(&claim).await.unwrap();
    }
}

async fn used_up(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    raw.ask::<()>(&["HSET", BUCKET, "layout", "1", "token", &(LAST - 1).to_string()]).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    assert_eq!(take(&driver, &holder).await.get(), LAST);
    assert_eq!(take(&driver, &holder).await.get(), LAST, "the same grant");
    refused(&driver, &waiter).await;
    // There is none left to hand the lock over with; it is free all the same.
    assert_eq!(driver.release(&holder).await.unwrap(), Release::Freed);
    for claim in [waiter, claim(LONG)] {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        assert_eq!(kind, ErrorKind::Capacity);
        assert!(text.contains("used up"), "{text}");
    }
    assert_eq!(raw.ask::<u64>(&["HGET", BUCKET, "token"]).await, LAST);
}
