//! The fair queue: who is served when, and that nothing of it stays behind.

use libtest_mimic::Trial;
use lockkit_core::driver::{Driver, Release, Renewal};
use lockkit_testkit::trial;
use tokio::time::sleep;

use crate::support::{Database, LONG, NOW, claim, millis, refused, shared, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("places_are_served_in_order", shared, order),
        trial("nobody_overtakes_a_place", shared, overtaking),
        trial("a_dead_place_is_passed_over", shared, dead),
        trial("dead_places_behind_a_living_one_are_dropped", shared, piling_up),
        trial("a_place_that_leaves_lets_the_others_on", shared, cancelling),
        trial("an_expired_lock_goes_to_the_first_place", shared, after_expiry),
        trial("a_place_that_comes_between_is_not_overtaken", shared, between),
        trial("deadlocks_are_got_over", shared, deadlock),
        trial("a_lock_that_was_removed_is_made_anew", shared, removed),
    ]
}

async fn order(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let holder = claim(LONG);
    let mut last = take(&driver, &holder).await;
    let waiters: Vec<_> = (0..5).map(|_| claim(LONG).fair()).collect();
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    driver.release(&holder).await.unwrap();
    for (at, waiter) in waiters.iter().enumerate() {
        for later in &waiters[at + 1..] {
            refused(&driver, later).await;
        }
        let token = take(&driver, waiter).await;
        assert!(token > last);
        last = token;
        assert_eq!(take(&driver, waiter).await, token, "the same grant");
        assert_eq!(driver.release(waiter).await.unwrap(), Release::Freed);
    }
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 0);
    assert_eq!(database.ask::<i64>("SELECT queued FROM lockkit_lock").await, 0);
}

async fn overtaking(server: String) {
    let driver = Database::on(&server).await.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    for other in [claim(LONG), claim(LONG).waiting(), claim(LONG).fair(), holder] {
        refused(&driver, &other).await;
    }
    take(&driver, &waiter).await;
}

async fn dead(server: String) {
    let driver = Database::on(&server).await.driver().await;
    let (holder, dead, living) = (claim(LONG), claim(millis(200)).fair(), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &dead).await;
    refused(&driver, &living).await;
    sleep(millis(220)).await;
    driver.release(&holder).await.unwrap();
    refused(&driver, &dead).await;
    take(&driver, &living).await;
}

async fn piling_up(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    refused(&driver, &claim(LONG).fair()).await;
    for _ in 0..3 {
        refused(&driver, &claim(millis(200)).fair()).await;
    }
    sleep(millis(220)).await;
    refused(&driver, &claim(LONG).fair()).await;
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 2);
}

async fn cancelling(server: String) {
    let driver = Database::on(&server).await.driver().await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let [first, second, third] = [(); 3].map(|()| claim(LONG).fair());
    for waiter in [&first, &second, &third] {
        refused(&driver, waiter).await;
    }
    assert_eq!(driver.release(&second).await.unwrap(), Release::NotHeld);
    assert_ne!(driver.renew(&holder).await.unwrap(), Renewal::Lost);
    driver.release(&holder).await.unwrap();
    assert_eq!(driver.release(&first).await.unwrap(), Release::NotHeld);
    refused(&driver, &claim(LONG)).await;
    take(&driver, &third).await;
    driver.release(&third).await.unwrap();

    // The last place that leaves lets in whoever comes.
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    driver.release(&waiter).await.unwrap();
    driver.release(&holder).await.unwrap();
    take(&driver, &claim(LONG)).await;
}

async fn after_expiry(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (dead, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &dead).await;
    refused(&driver, &waiter).await;
    database
        .run(&format!("UPDATE lockkit_lock SET expires = {NOW} - 1 WHERE owner IS NOT NULL"))
        .await;
    refused(&driver, &claim(LONG)).await;
    take(&driver, &waiter).await;
    assert_eq!(driver.renew(&dead).await.unwrap(), Renewal::Lost);
}

/// A place is left while a plain ask, which began before, waits for the row of the lock: the place
/// must be seen all the same.
async fn between(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiter, plain) = (claim(LONG), claim(LONG).fair(), claim(LONG));
    take(&near, &holder).await;
    near.release(&holder).await.unwrap();
    database
        .run(&format!(
            "START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE; \
             INSERT INTO lockkit_place (namespace, name, owner, label, since, expires, arrival) \
             SELECT namespace, name, '{}', 'l', {NOW}, {NOW} + 30000000, 1 FROM lockkit_lock; \
             UPDATE lockkit_lock SET queued = {NOW} + 30000000",
            waiter.owner()
        ))
        .await;
    let asking = async {
        refused(&far, &plain).await;
    };
    let committing = async {
        database.waits_reach(1).await;
        database.run("COMMIT").await;
    };
    tokio::join!(asking, committing);
    take(&near, &waiter).await;
}

/// Another session locks first a place and then the lock's row, which nothing of ours does: the
/// server ends one of the two transactions.
async fn deadlock(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    // With more done than the driver's, so that the latter is ended.
    database.run("CREATE TABLE weight (n int); INSERT INTO weight VALUES (1), (2), (3), (4)").await;
    for _ in 0..3 {
        database
            .run(
                "START TRANSACTION; UPDATE weight SET n = n + 1; \
                 UPDATE lockkit_place SET since = since + 1",
            )
            .await;
        let asking = async {
            refused(&driver, &waiter).await;
        };
        let crossing = async {
            database.waits_reach(1).await;
            database.run("SELECT COUNT(*) FROM lockkit_lock FOR UPDATE; COMMIT").await;
        };
        tokio::join!(asking, crossing);
    }
    assert_eq!(database.transactions().await, 0);
    driver.release(&holder).await.unwrap();
    take(&driver, &waiter).await;
}

/// By hand, or with what a failover has lost.
async fn removed(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    database.run("DELETE FROM lockkit_lock; DELETE FROM lockkit_place").await;
    take(&driver, &waiter).await;
}
