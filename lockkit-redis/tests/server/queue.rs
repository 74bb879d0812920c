//! The fair queue: who is served when, and that nothing of it stays behind.

use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Driver, Release, Renewal};
use lockkit_testkit::{REDIS, Server, trial};
use tokio::time::sleep;

use crate::support::{LONG, NAME, Raw, claim, driver, listen, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("places_are_served_by_hand_over_in_order", || REDIS.start(), order),
        trial("nobody_overtakes_a_place", || REDIS.start(), overtaking),
        trial("a_dead_place_is_passed_over", || REDIS.start(), dead),
        trial("dead_places_behind_a_living_one_are_dropped", || REDIS.start(), piling_up),
        trial("dead_places_in_no_order_are_dropped", || REDIS.start(), piling_up_in_no_order),
        trial("a_first_place_that_leaves_hands_on", || REDIS.start(), cancelling),
        trial("a_handed_lock_ends_with_the_place", || REDIS.start(), handed_expiry),
        trial("an_expired_lock_goes_to_the_first_place", || REDIS.start(), after_expiry),
        trial("a_place_without_a_deadline_is_dead", || REDIS.start(), evicted),
        trial("nothing_of_a_queue_stays_behind", || REDIS.start(), leftovers),
    ]
}

async fn order(server: Server) {
    let driver = driver(&server.url()).await;
    let holder = claim(LONG);
    let mut last = take(&driver, &holder).await;
    let waiters: Vec<_> = (0..5).map(|_| claim(LONG).fair()).collect();
    listen(&driver, &waiters[0]).await;
    for waiter in &waiters[1..] {
        refused(&driver, waiter).await;
    }
    driver.release(&holder).await.unwrap();
    for waiter in &waiters {
        let Change::Granted(grant) = driver.changed(waiter).await else { panic!("no grant") };
        let token = grant.fencing_token().unwrap();
        assert!(token > last);
        last = token;
        assert_eq!(take(&driver, waiter).await, token, "the grant that was pushed");
        assert_eq!(driver.release(waiter).await.unwrap(), Release::Freed);
    }
}

async fn overtaking(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    for other in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair(), holder] {
        refused(&driver, &other).await;
    }
    take(&driver, &waiter).await;
}

async fn dead(server: Server) {
    let driver = driver(&server.url()).await;
    let (holder, dead, living) = (claim(LONG), claim(millis(100)).fair(), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &dead).await;
    refused(&driver, &living).await;
    sleep(millis(120)).await;
    driver.release(&holder).await.unwrap();
    refused(&driver, &dead).await;
    take(&driver, &living).await;
}

async fn piling_up(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    take(&driver, &claim(LONG)).await;
    refused(&driver, &claim(LONG).fair()).await;
    for _ in 0..3 {
        refused(&driver, &claim(millis(50)).fair()).await;
    }
    sleep(millis(70)).await;
    refused(&driver, &claim(LONG)).await;
    for kind in ["queue", "deadlines"] {
        let key = format!("{{lockkit:362}}:{kind}:{NAME}");
        assert_eq!(raw.ask::<u64>(&["ZCARD", &key]).await, 1, "{kind}");
    }
}

async fn piling_up_in_no_order(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    take(&driver, &claim(LONG)).await;
    let living = claim(LONG).waiting();
    refused(&driver, &living).await;
    for _ in 0..3 {
        refused(&driver, &claim(millis(50)).waiting()).await;
    }
    sleep(millis(70)).await;
    // How many wait is what the pace of those depends on who ask.
    assert_eq!(refused(&driver, &living).await.asks_within(), Some(millis(1000)));
    refused(&driver, &claim(millis(50)).fair()).await;
    assert_eq!(refused(&driver, &living).await.asks_within(), Some(millis(1000)), "it is told");
    sleep(millis(70)).await;
    refused(&driver, &living).await;
    for kind in ["unordered", "deadlines"] {
        let key = format!("{{lockkit:362}}:{kind}:{NAME}");
        assert_eq!(raw.ask::<u64>(&["ZCARD", &key]).await, 1, "{kind}");
    }
}

async fn cancelling(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    // The lock runs out while two wait; the first gives up before anybody else has come by.
    let (holder, first, second) = (claim(LONG), claim(LONG).fair(), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &first).await;
    refused(&driver, &second).await;
    raw.expire_lock().await;
    assert_eq!(driver.release(&first).await.unwrap(), Release::NotHeld);
    assert!(matches!(driver.changed(&second).await, Change::Granted(_)));

    // In the middle of the queue, while the lock is held.
    let (third, fourth) = (claim(LONG).fair(), claim(LONG).fair());
    refused(&driver, &third).await;
    refused(&driver, &fourth).await;
    assert_eq!(driver.release(&third).await.unwrap(), Release::NotHeld);
    assert_ne!(driver.renew(&second).await.unwrap(), Renewal::Lost);
    driver.release(&second).await.unwrap();
    take(&driver, &fourth).await;
}

async fn handed_expiry(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let (holder, waiter) = (claim(LONG), claim(millis(10_000)).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    let deadlines = format!("{{lockkit:362}}:deadlines:{NAME}");
    let places: Vec<(String, u64)> =
        raw.ask(&["ZRANGE", &deadlines, "0", "-1", "WITHSCORES"]).await;
    let [(_, deadline)] = *places else { panic!("{places:?}") };
    sleep(millis(20)).await;
    driver.release(&holder).await.unwrap();
    let lock = format!("{{lockkit:362}}:lock:{NAME}");
    assert_eq!(raw.ask::<u64>(&["PEXPIRETIME", &lock]).await, deadline);
    assert_eq!(raw.ask::<String>(&["HGET", &lock, "owner"]).await, waiter.owner().to_string());
    // Asking makes it a full lease.
    take(&driver, &waiter).await;
    assert!(raw.ask::<u64>(&["PEXPIRETIME", &lock]).await > deadline);
}

async fn after_expiry(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let (dead, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &dead).await;
    listen(&driver, &waiter).await;
    raw.expire_lock().await;
    // Another's ask finds the lock free, and the place before it.
    let taken = refused(&driver, &claim(LONG)).await;
    assert!(taken.remaining().unwrap() > millis(20_000));
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
}

async fn evicted(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let holder = claim(LONG);
    take(&driver, &holder).await;
    refused(&driver, &claim(LONG).fair()).await;
    raw.ask::<()>(&["DEL", &format!("{{lockkit:362}}:deadlines:{NAME}")]).await;
    driver.release(&holder).await.unwrap();
    take(&driver, &claim(LONG)).await;
}

async fn leftovers(server: Server) {
    let (driver, mut raw) = (driver(&server.url()).await, Raw::connect(&server.url()).await);
    let holder = claim(LONG);
    take(&driver, &holder).await;
    // Places are made, refreshed, given up and abandoned, with leases long and short.
    let mut waiters = Vec::new();
    for number in 0..20 {
        let waiter = claim(millis(50 + 10 * number)).fair();
        refused(&driver, &waiter).await;
        waiters.push(waiter);
    }
    for waiter in waiters.iter().step_by(2) {
        assert!(matches!(driver.try_acquire(waiter).await.unwrap(), Attempt::Taken(_)));
    }
    for waiter in waiters.iter().step_by(3) {
        driver.release(waiter).await.unwrap();
    }
    driver.release(&holder).await.unwrap();
    raw.wait_until_empty().await;
}
