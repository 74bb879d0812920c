//! What is seen of locks from outside.

use std::pin::pin;
use std::time::Instant;

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Claim, Driver, Inspect};
use lockkit_testkit::{ZOOKEEPER, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::time::sleep;

use crate::support::{Place, claim, driver, millis, refused, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("times_are_told_by_the_servers_clock", || ZOOKEEPER.url(), times),
        trial("a_hold_that_was_waited_for_lasts_since_its_grant", || ZOOKEEPER.url(), waited),
        trial("so_does_one_that_was_asked_for_at_last", || ZOOKEEPER.url(), waited_and_asked),
        trial("so_does_one_that_still_watches_another", || ZOOKEEPER.url(), watched_and_asked),
    ]
}

async fn times(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    let asked = Instant::now();
    take(&driver, &held).await;
    sleep(millis(300)).await;
    let came = Instant::now();
    refused(&driver, &waiting).await;
    sleep(millis(200)).await;
    let (status, listed) = (
        driver.look(held.name()).await.unwrap(),
        driver.held(held.name().namespace()).await.unwrap(),
    );
    let [waiter] = status.waiters() else { panic!("{status:?}") };
    // The server counts in milliseconds.
    let (held_for, waited_for) =
        (status.holder().unwrap().held_for().unwrap(), waiter.waiting_for());
    assert!(held_for >= millis(499) && held_for <= asked.elapsed() + millis(1), "{held_for:?}");
    let waited_for = waited_for.unwrap();
    assert!(waited_for >= millis(199) && waited_for <= came.elapsed() + millis(1));
    assert!(held_for >= waited_for + millis(298), "{held_for:?} and {waited_for:?}");
    assert!(listed[0].holder().unwrap().held_for().unwrap() >= held_for);
    let broken = driver.break_hold(held.name(), None).await.unwrap().unwrap();
    assert!(broken.held_for().unwrap() >= held_for);
    // Nothing stays of asking what the time is.
    let names = place.raw.list_children(&place.path("/lockkit")).await.unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
}

async fn waited(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    sleep(millis(500)).await;
    let released = Instant::now();
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
    is_dated(&driver, &waiting, released).await;
}

/// Behind a claim of another driver, which need not have been the first.
async fn waited_and_asked(server: String) {
    let place = Place::on(&server).await;
    let (ours, theirs) = (driver(&place.url).await, driver(&place.url).await);
    let (held, before, waiting) = (claim(), claim().fair(), claim().fair());
    take(&theirs, &held).await;
    refused(&theirs, &before).await;
    refused(&ours, &waiting).await;
    theirs.release(&held).await.unwrap();
    take(&theirs, &before).await;
    sleep(millis(500)).await;
    let released = Instant::now();
    theirs.release(&before).await.unwrap();
    assert_eq!(ours.changed(&waiting).await, Change::AskAgain);
    take(&ours, &waiting).await;
    is_dated(&ours, &waiting, released).await;
}

/// By an ask that comes before the news that it waited for.
async fn watched_and_asked(server: String) {
    let place = Place::on(&server).await;
    let (ours, theirs) = (driver(&place.url).await, driver(&place.url).await);
    let (held, waiting) = (claim(), claim().fair());
    take(&theirs, &held).await;
    refused(&ours, &waiting).await;
    {
        let mut listening = pin!(ours.changed(&waiting));
        while place.watched().await.is_empty() {
            assert!(poll!(&mut listening).is_pending());
        }
    }
    sleep(millis(500)).await;
    let released = Instant::now();
    theirs.release(&held).await.unwrap();
    take(&ours, &waiting).await;
    is_dated(&ours, &waiting, released).await;
}

/// Waits until the servers tell that the lock is held since then, and not since it was asked for.
async fn is_dated(driver: &ZooKeeperDriver, holder: &Claim, released: Instant) {
    let mut held = pin!(driver.changed(holder));
    loop {
        assert!(poll!(&mut held).is_pending());
        let status = driver.look(holder.name()).await.unwrap();
        let since = status.holder().unwrap().held_for().unwrap();
        if since <= released.elapsed() {
            break;
        }
    }
}
