//! The fair queue: who is served when, and that nothing of it stays behind.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Driver, Release, Renewal};
use lockkit_testkit::{POSTGRES, trial};
use tokio::time::sleep;

use crate::support::{Database, LONG, NAME, claim, listen, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("places_are_served_by_hand_over_in_order", || POSTGRES.url(), order),
        trial("nobody_overtakes_a_place", || POSTGRES.url(), overtaking),
        trial("a_dead_place_is_passed_over", || POSTGRES.url(), dead),
        trial("dead_places_behind_a_living_one_are_dropped", || POSTGRES.url(), piling_up),
        trial("a_first_place_that_leaves_hands_on", || POSTGRES.url(), cancelling),
        trial("a_handed_lock_ends_with_the_place", || POSTGRES.url(), handed_expiry),
        trial("an_expired_lock_goes_to_the_first_place", || POSTGRES.url(), after_expiry),
        trial("a_place_that_comes_between_is_not_overtaken", || POSTGRES.url(), between),
        trial("a_place_is_seen_whatever_the_isolation", || POSTGRES.url(), isolated),
        trial("places_are_refreshed_together", || POSTGRES.url(), staying),
        trial("whose_place_was_kept_believes_in_it", || POSTGRES.url(), kept),
        trial("one_of_those_kept_finds_that_the_hold_is_over", || POSTGRES.url(), over),
    ]
}

const RUN_OUT: &str = "UPDATE lockkit_lock SET expires = lockkit_now() - 1 WHERE owner IS NOT NULL";

async fn order(server: String) {
    let driver = Database::on(&server).await.driver().await;
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
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM lockkit_place").await, 2);
}

async fn cancelling(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    // The lock runs out while two wait; the first gives up before anybody else has come by.
    let (holder, first, second) = (claim(LONG), claim(LONG).fair(), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &first).await;
    refused(&driver, &second).await;
    database.run(RUN_OUT).await;
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

async fn handed_expiry(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(millis(10_000)).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    let deadline: i64 = database.ask("SELECT expires FROM lockkit_place").await;
    driver.release(&holder).await.unwrap();
    assert_eq!(database.ask::<i64>("SELECT expires FROM lockkit_lock").await, deadline);
    let owner: String = database.ask("SELECT owner FROM lockkit_lock").await;
    assert_eq!(owner, waiter.owner().to_string());
    // Asking makes it a full lease.
    take(&driver, &waiter).await;
    assert!(database.ask::<i64>("SELECT expires FROM lockkit_lock").await > deadline);
}

async fn after_expiry(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (dead, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &dead).await;
    listen(&driver, &waiter).await;
    database.run(RUN_OUT).await;
    // Another's ask finds the lock free, and the place before it.
    let taken = refused(&driver, &claim(LONG)).await;
    assert!(taken.remaining().unwrap() > millis(20_000));
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
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
            "BEGIN; SELECT FROM lockkit_lock FOR UPDATE; \
             INSERT INTO lockkit_place \
                 (namespace, name, owner, label, inbox, turn, since, lease, expires) \
             SELECT namespace, name, '{}', 'l', 'i', 0, lockkit_now(), 1, lockkit_now() + 30000000 \
             FROM lockkit_lock",
            waiter.owner()
        ))
        .await;
    let asking = async {
        refused(&far, &plain).await;
    };
    let committing = async {
        database.blocks_somebody().await;
        database.run("COMMIT").await;
    };
    tokio::join!(asking, committing);
    take(&near, &waiter).await;
}

/// A release waits for the row of the lock, with a snapshot from before the place.
async fn isolated(server: String) {
    let mut database = Database::on(&server).await;
    let name = database.name().to_owned();
    let level = "default_transaction_isolation = 'repeatable read'";
    database.run(&format!("ALTER DATABASE {name} SET {level}")).await;
    let mut database = Database::at(&database.url).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&near, &holder).await;
    let wait = format!(
        "SELECT * FROM lockkit_take('lockkit', '{NAME}', '{}', 'l', 30000000, 'i', true, false, \
                                    0, 0, 10000)",
        waiter.owner()
    );
    // The one who is misled is not the one who leaves the place.
    database.run(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; {wait}")).await;
    let releasing = async { near.release(&holder).await.unwrap() };
    let committing = async {
        database.blocks_somebody().await;
        database.run("COMMIT").await;
    };
    let (released, ()) = tokio::join!(releasing, committing);
    assert_eq!(released, Release::Freed);
    let owner: String = database.ask("SELECT coalesce(owner, 'nobody') FROM lockkit_lock").await;
    assert_eq!(owner, waiter.owner().to_string());
    take(&far, &waiter).await;
}

async fn staying(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    let waiters: Vec<_> = (0..10).map(|_| claim(millis(6_400)).fair()).collect();
    listen(&driver, &waiters[0]).await;
    for waiter in &waiters[1..] {
        refused(&driver, waiter).await;
    }
    let asks = || join_all(waiters.iter().map(|waiter| refused(&driver, waiter)));
    database.run("UPDATE lockkit_place SET expires = expires - 2000000").await;
    let ends = asks().await.into_iter().filter(|taken| taken.remaining().is_some()).count();
    assert_eq!(ends, 1, "who ask at the end of the hold");
    let fresh = "SELECT count(*) FROM lockkit_place WHERE expires > lockkit_now() + 5000000";
    assert_eq!(database.ask::<i64>(fresh).await, 10);
    let versions = "SELECT count(DISTINCT xmin::text) FROM lockkit_place";
    assert_eq!(database.ask::<i64>(versions).await, 1, "transactions");
    // Which is not there any more stands behind the others then.
    let gone = waiters[0].owner();
    database.run(&format!("DELETE FROM lockkit_place WHERE owner = '{gone}'")).await;
    asks().await;
    let last = "SELECT owner FROM lockkit_place ORDER BY arrival DESC LIMIT 1";
    assert_eq!(database.ask::<String>(last).await, gone.to_string());
}

/// A hold that is handed over ends with the place, and the new holder counts from when it asked.
async fn kept(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(millis(6_400)).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    database.run("UPDATE lockkit_place SET expires = expires - 2000000").await;
    let asked: i64 = database.ask("SELECT lockkit_now()").await;
    refused(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
    let ends: i64 = database.ask("SELECT expires FROM lockkit_lock").await;
    assert!(ends >= asked + 6_400_000);
}

async fn over(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    let waiters = [(); 3].map(|()| claim(millis(6_400)).fair());
    listen(&driver, &waiters[0]).await;
    for waiter in &waiters[1..] {
        refused(&driver, waiter).await;
    }
    database.run(RUN_OUT).await;
    // Whichever asks first finds out, and the first is served.
    join_all(waiters[1..].iter().map(|waiter| refused(&driver, waiter))).await;
    assert!(matches!(driver.changed(&waiters[0]).await, Change::Granted(_)));
}
