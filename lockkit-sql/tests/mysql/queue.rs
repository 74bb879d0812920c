//! The fair queue: who is served when, and that nothing of it stays behind.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use lockkit_core::Locker;
use lockkit_core::driver::{Driver, Release, Renewal, Taken};
use lockkit_testkit::{Server, trial};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{
    CARRIED_OUT, Database, LONG, NAME, NOW, claim, driver, impatient_driver, listen, millis,
    private, refused, shared, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("places_are_served_in_order", shared, order),
        trial("nobody_overtakes_a_place", shared, overtaking),
        trial("a_dead_place_is_passed_over", shared, dead),
        trial("dead_places_behind_a_living_one_are_dropped", shared, piling_up),
        trial("a_place_that_leaves_lets_the_others_on", shared, cancelling),
        trial("an_expired_lock_goes_to_the_first_place", shared, after_expiry),
        trial("a_place_that_comes_between_is_not_overtaken", shared, between),
        trial("who_looks_locks_nothing", shared, looking),
        trial("a_turn_is_lost_to_a_place_before_it", shared, turns),
        trial("those_behind_others_are_refreshed_together", private, staying),
        trial("what_is_left_of_a_turn_keeps_nobody_out", shared, left_over),
        trial("a_place_that_outlived_a_turn_and_a_release_goes", shared, outlived),
        trial("a_grant_of_a_crowd_is_three_statements", private, three),
        trial("a_grant_of_crowds_that_take_turns_is_few_statements", private, by_turns),
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
             INSERT INTO lockkit_place \
                 (namespace, name, owner, label, inbox, since, expires, arrival) \
             SELECT namespace, name, '{}', 'l', 0, {NOW}, {NOW} + 30000000, 1 FROM lockkit_lock; \
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

/// Who polls with a fresh place does not stand in the way of the holder's renewals.
async fn looking(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let locked = "START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE; \
                  SELECT COUNT(*) FROM lockkit_place FOR UPDATE";
    database.run(locked).await;
    let taken = refused(&driver, &waiter).await;
    assert!(!taken.is_unheard() && taken.remaining().is_some());
    database.run("COMMIT").await;
}

/// Two find the lock free, and only one of them has the first place.
async fn turns(server: String) {
    let mut database = Database::on(&server).await;
    let (near, far) = (database.driver().await, database.driver().await);
    let holder = claim(LONG);
    take(&near, &holder).await;
    let [first, second] = [(); 2].map(|()| claim(LONG).fair());
    refused(&near, &first).await;
    refused(&far, &second).await;
    // It does not hold the lock any more, and nobody was told.
    database.run("UPDATE lockkit_lock SET owner = NULL, expires = 0").await;
    // The first place is there again by the time at which the second asks for the lock.
    database.run("UPDATE lockkit_place SET expires = expires - 40000000 WHERE arrival = 1").await;
    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
    let asking = async {
        refused(&far, &second).await;
    };
    let coming_back = async {
        database.waits_reach(1).await;
        let back = "UPDATE lockkit_place SET expires = expires + 40000000 WHERE arrival = 1";
        database.run(back).await;
        database.run("COMMIT").await;
    };
    tokio::join!(asking, coming_back);
    take(&near, &first).await;
    near.release(&first).await.unwrap();
    take(&far, &second).await;
    far.release(&second).await.unwrap();
    take(&near, &claim(LONG)).await;
}

async fn staying(server: Server) {
    let mut database = Database::at(&server.url()).await;
    let driver = database.driver().await;
    take(&driver, &claim(LONG)).await;
    // More than one statement has room for.
    let waiters: Vec<_> = (0..100).map(|_| claim(millis(25_600)).fair()).collect();
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    let stale = "UPDATE lockkit_place SET expires = expires - 8000000; \
                 UPDATE lockkit_lock SET queued = 0";
    database.run(stale).await;
    let before = database.figure(CARRIED_OUT).await;
    let asks = || join_all(waiters[1..].iter().map(|waiter| refused(&driver, waiter)));
    assert!(asks().await.iter().all(Taken::is_heard));
    let carried_out = database.figure(CARRIED_OUT).await - before;
    assert!(carried_out < 99 / 4, "{carried_out} statements");
    let fresh = format!("SELECT COUNT(*) FROM lockkit_place WHERE expires > {NOW} + 20000000");
    assert_eq!(database.ask::<i64>(&fresh).await, 99, "all but the first");
    let last = "SELECT MAX(l.queued) = MAX(p.expires) FROM lockkit_lock AS l, lockkit_place AS p";
    assert!(database.ask::<bool>(last).await);
    // Which is not there any more stands behind the others then.
    let gone = waiters[1].owner();
    database.run(&format!("DELETE FROM lockkit_place WHERE owner = '{gone}'")).await;
    assert!(asks().await.iter().all(Taken::is_heard));
    let behind = format!(
        "SELECT arrival > ALL (SELECT arrival FROM lockkit_place WHERE owner <> '{gone}') \
         FROM lockkit_place WHERE owner = '{gone}'"
    );
    assert!(database.ask::<bool>(&behind).await);
}

/// Who takes its turn removes its place afterwards; others come and go in between.
async fn left_over(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    let (holder, waiter) = (claim(LONG).fair(), claim(LONG).fair());
    take(&driver, &holder).await;
    refused(&driver, &waiter).await;
    let left =
        "UPDATE lockkit_place SET owner = (SELECT owner FROM lockkit_lock) WHERE arrival = 0";
    let place = "INSERT INTO lockkit_place SELECT namespace, name, 'x', label, inbox, 0, since, expires \
                 FROM lockkit_place";
    database.run(&format!("{place}; {left}")).await;
    driver.release(&waiter).await.unwrap();
    assert_eq!(database.ask::<i64>("SELECT queued FROM lockkit_lock").await, 0);
    database.run("DELETE FROM lockkit_place").await;
    driver.release(&holder).await.unwrap();
    take(&driver, &claim(LONG)).await;
}

/// Neither who was granted the lock nor its first release could remove its place.
async fn outlived(server: String) {
    let mut database = Database::on(&server).await;
    let driver = database.driver().await;
    // The server gives up first, so that nothing lands later.
    let hurried = impatient_driver(&format!("{}?call_limit=1500ms", database.url)).await;
    let (holder, next) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    let first = claim(LONG).fair();
    refused(&hurried, &first).await;
    refused(&driver, &next).await;
    driver.release(&holder).await.unwrap();

    database.run("START TRANSACTION; SELECT COUNT(*) FROM lockkit_place FOR UPDATE").await;
    hurried.try_acquire(&first).await.unwrap_err();
    database.run("SELECT COUNT(*) FROM lockkit_lock FOR UPDATE").await;
    hurried.release(&first).await.unwrap_err();
    database.run("COMMIT").await;
    assert_eq!(hurried.release(&first).await.unwrap(), Release::Freed);
    take(&driver, &next).await;
}

async fn three(server: Server) {
    const GRANTS: usize = 5;
    let mut database = Database::at(&server.url()).await;
    let driver = database.driver().await;
    let holder = claim(LONG);
    take(&driver, &holder).await;
    let waiters: Vec<_> = (0..GRANTS).map(|_| claim(LONG).fair()).collect();
    for waiter in &waiters {
        refused(&driver, waiter).await;
    }
    driver.release(&holder).await.unwrap();
    // Known to the connection by then.
    let (first, others) = waiters.split_first().unwrap();
    take(&driver, first).await;
    driver.release(first).await.unwrap();
    let before = database.figure(CARRIED_OUT).await;
    for waiter in others {
        take(&driver, waiter).await;
        assert_eq!(driver.release(waiter).await.unwrap(), Release::Freed);
    }
    let after = database.figure(CARRIED_OUT).await;
    // One of them is the count itself.
    assert_eq!(after - before - 1, 3 * others.len() as i64);
}

/// Of two processes, each with every other place: behind a waiter is always one of the other.
async fn by_turns(server: Server) {
    const WAITERS: i64 = 100;
    let mut database = Database::at(&server.url()).await;
    let url = &database.url;
    let lockers = [(); 2].map(|()| async { Locker::new(driver(url).await) });
    let locks = join_all(lockers).await.into_iter();
    let locks: Vec<_> = locks.map(|locker| locker.lock(NAME).unwrap().fair().unwrap()).collect();
    let held = locks[0].acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for place in 1..=WAITERS {
        let lock = locks[place as usize % 2].clone();
        waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        while database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await < place {
            sleep(millis(2)).await;
        }
    }
    let before = database.figure(CARRIED_OUT).await;
    held.release().await.unwrap();
    waiting.join_all().await;
    let carried_out = database.figure(CARRIED_OUT).await - before;
    // They ask once a second as well. If all were told of each release, it would be 80.
    assert!(carried_out < 20 * WAITERS, "{carried_out} statements for {WAITERS} grants");
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
                // The place has to be refreshed.
                "UPDATE lockkit_place SET expires = expires - 10000000; \
                 START TRANSACTION; UPDATE weight SET n = n + 1; \
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
