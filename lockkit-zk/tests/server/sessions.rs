//! Sessions that end, connections that break, and what both mean for holds.

use std::pin::pin;
use std::time::Instant;

use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::driver::{Attempt, Change, Driver, Release, Renewal, Vouch};
use lockkit_core::{Error, Locker};
use lockkit_testkit::{Proxy, Server, Unavailable, ZOOKEEPER, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::select;

use crate::support::{
    FOLDER, NAME, Place, addr, causes, claim, driver, millis, refused, take, with,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("an_expired_session_takes_hold_and_place_along", || ZOOKEEPER.url(), expired),
        trial("a_guard_is_lost_before_the_session_ends", || ZOOKEEPER.url(), in_time),
        trial("a_hold_that_is_watched_is_kept_without_asking", || ZOOKEEPER.start(), kept),
        trial("a_cut_is_cause_to_doubt_and_no_loss", || ZOOKEEPER.url(), cut),
        trial("a_restarted_server_keeps_the_holds", patient, restarted),
        trial("the_session_is_as_long_as_granted", || ZOOKEEPER.url(), granted),
        trial("sessions_that_are_too_short_are_refused", short, too_short),
        trial("a_closed_driver_leaves_no_session", || ZOOKEEPER.url(), closed),
        trial("a_dropped_driver_leaves_no_session", || ZOOKEEPER.url(), dropped),
    ]
}

async fn expired(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = driver(&with(&place.url_by(proxy.addr()), "ttl=1s")).await;
    let (held, waiting, behind) = (claim(), claim().fair(), claim().fair());
    let first = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    refused(&driver, &behind).await;
    let mut listening = pin!(driver.changed(&behind));
    assert!(poll!(&mut listening).is_pending());
    proxy.refuse().await;
    proxy.reset().await;
    place.nodes_come_to(0).await;
    proxy.accept().await;
    let mut change = driver.changed(&held).await;
    if change == Change::AskAgain {
        change = driver.changed(&held).await;
    }
    assert_eq!(change, Change::Lost);
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.changed(&waiting).await, Change::Lost);
    assert_eq!(listening.await, Change::Lost);
    // Another session has begun by itself.
    assert!(take(&driver, &waiting).await > first);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    assert_eq!(place.nodes().await.len(), 1);
    assert_eq!(driver.release(&waiting).await.unwrap(), Release::Freed);
}

async fn in_time(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let url = with(&place.url_by(proxy.addr()), "ttl=1500ms").parse().unwrap();
    let locker = Locker::new(ZooKeeperDriver::connect(&url).await.unwrap());
    let guard = locker.lock(NAME).unwrap().acquire().await.unwrap();
    let [node] = &place.nodes().await[..] else { panic!("no node") };
    let path = place.path(&format!("{}/{node}", FOLDER));
    let (_, _, watch) = place.raw.get_and_watch_data(&path).await.unwrap();
    // Neither way: each side believes that the other is silent.
    proxy.requests().swallow();
    proxy.answers().swallow();
    tokio::select! {
        biased;
        // Seen first where both are seen late: the clock tells what the holder believes.
        _ = watch.changed() => (),
        () = guard.lost() => (),
    }
    assert!(!guard.is_held(), "the session has ended while its holder believes in it");
    place.nodes_come_to(0).await;
}

async fn cut(server: String) {
    let place = Place::on(&server).await;
    let proxy = Proxy::start(addr(&server)).await;
    let driver = driver(&place.url_by(proxy.addr())).await;
    let (held, waiting) = (claim(), claim().fair());
    let token = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    proxy.reset().await;
    assert_eq!(driver.changed(&held).await, Change::AskAgain);
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(take(&driver, &held).await, token);
    refused(&driver, &waiting).await;
    assert_eq!(place.nodes().await.len(), 2);
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

async fn kept(server: Server) {
    const RENEWALS: usize = 200;
    let place = Place::on(&server.url()).await;
    let driver = driver(&place.url).await;
    let held = claim();
    take(&driver, &held).await;
    {
        let mut listening = pin!(driver.changed(&held));
        select! {
            change = &mut listening => panic!("nothing has happened, but {change:?}"),
            () = place.watches_come_to(1) => (),
        }
        // Its answer comes after that to the watch.
        assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
        assert!(poll!(&mut listening).is_pending());
    }
    let before = place.packets().await;
    for _ in 0..RENEWALS {
        assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    }
    let asked = place.packets().await - before;
    assert!(asked < RENEWALS / 2, "{RENEWALS} renewals took {asked} packets");

    let [node] = &place.nodes().await[..] else { panic!("no node") };
    place.raw.delete(&format!("{}/{node}", place.path(FOLDER)), None).await.unwrap();
    while driver.renew(&held).await.unwrap() != Renewal::Lost {
        tokio::task::yield_now().await;
    }
}

async fn restarted(server: Server) {
    let place = Place::on(&server.url()).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    let token = take(&driver, &held).await;
    refused(&driver, &waiting).await;
    server.restart().unwrap();
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(take(&driver, &held).await, token);
    // The watch is set again.
    refused(&driver, &waiting).await;
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

/// The server's bounds are 2 and 20 ticks of 200 ms; ours is 3 at least.
async fn granted(server: String) {
    let place = Place::on(&server).await;
    for (wish, granted) in [(500, 600), (1000, 1000), (30_000, 4000)] {
        let driver = driver(&with(&place.url, &format!("ttl={wish}ms"))).await;
        let Attempt::Granted(grant) = driver.try_acquire(&claim()).await.unwrap() else {
            panic!("not granted")
        };
        let Vouch::Lease { ttl, .. } = grant.vouched() else { panic!("{grant:?}") };
        assert_eq!(ttl, millis(granted - 200), "a tick less than the session");
        driver.close().await;
    }
}

/// With sessions of half a second at most.
fn short() -> Result<Server, Unavailable> {
    with_longest_session(500)
}

/// With sessions that outlast a slow start.
fn patient() -> Result<Server, Unavailable> {
    with_longest_session(60_000)
}

fn with_longest_session(millis: u64) -> Result<Server, Unavailable> {
    let server = ZOOKEEPER.start()?;
    let setting = format!("maxSessionTimeout={millis}\n");
    std::fs::write(server.data().join("settings"), setting).unwrap();
    server.restart()?;
    Ok(server)
}

async fn too_short(server: Server) {
    let error = ZooKeeperDriver::connect(&server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(causes(&error).contains("500ms"), "{}", causes(&error));
}

async fn closed(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    take(&driver, &claim()).await;
    driver.close().await;
    assert_eq!(place.nodes().await, [""; 0]);
    assert!(driver.try_acquire(&claim()).await.is_err());
    driver.close().await;
}

/// At once, and not when its time is over.
async fn dropped(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&with(&place.url, "ttl=4s")).await;
    take(&driver, &claim()).await;
    let start = Instant::now();
    drop(driver);
    place.nodes_come_to(0).await;
    assert!(start.elapsed() < millis(3000));
}
