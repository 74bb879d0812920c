//! Who waits, for whom, and who is told of what.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use libtest_mimic::Trial;
use lockkit_core::Locker;
use lockkit_core::driver::{Change, Claim, Driver, ErrorKind, Release, Renewal};
use lockkit_testkit::{Server, ZOOKEEPER, trial};
use tokio::select;
use tokio::time::{Instant, sleep, sleep_until};
use zookeeper_client::{Acl, AuthId, Permission};

use crate::support::{
    FOLDER, NAME, Place, claim, claim_for, driver, kind, millis, refused, take, with,
};
use crate::weather::lasting;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("each_waiter_watches_the_one_before_only", || ZOOKEEPER.url(), watches),
        trial("who_is_behind_a_waiter_of_its_driver_watches_nothing", || ZOOKEEPER.url(), told),
        trial("the_next_has_the_lock_without_asking", || ZOOKEEPER.url(), next),
        trial("each_of_a_row_has_the_lock_without_asking", || ZOOKEEPER.url(), row),
        trial("who_are_many_look_at_the_queue_together", || ZOOKEEPER.start(), together),
        trial("many_hand_the_lock_on_by_a_request_each", || ZOOKEEPER.start(), passed_on),
        trial("who_waits_and_asks_again_lists_nothing", || ZOOKEEPER.url(), asks_again),
        trial("who_may_not_see_the_queue_has_no_place_in_it", || ZOOKEEPER.url(), unseen),
        trial("who_may_not_read_the_one_before_asks_now_and_then", || ZOOKEEPER.url(), unread),
        trial("who_is_further_back_asks_again", || ZOOKEEPER.url(), further_back),
        trial("who_leaves_takes_node_and_watch_along", || ZOOKEEPER.url(), leaving),
        trial("a_place_that_nobody_asks_for_is_removed", || ZOOKEEPER.url(), abandoned),
        trial("who_stands_in_line_to_ask_keeps_its_place", lasting, in_line),
        trial("a_place_that_cannot_be_removed_is_removed_later", || ZOOKEEPER.url(), later),
        trial("a_removed_place_is_taken_anew", || ZOOKEEPER.url(), removed),
        trial("nothing_is_left_of_what_is_dropped", || ZOOKEEPER.url(), dropped),
    ]
}

async fn watches(server: String) {
    let place = Place::on(&server).await;
    let drivers = [driver(&place.url).await, driver(&place.url).await];
    let claims: Vec<_> = (0..6).map(|_| claim().fair()).collect();
    // No two of a driver stand next to one another.
    let all: Vec<_> = drivers.iter().cycle().zip(&claims).collect();
    take(all[0].0, all[0].1).await;
    for (driver, claim) in &all[1..] {
        refused(driver, claim).await;
    }
    let listening = all[1..].iter().map(|(driver, claim)| driver.changed(claim));
    let mut listening = pin!(join_all(listening));
    assert!(poll!(&mut listening).is_pending());
    while place.watched().await.len() < 5 {
        assert!(poll!(&mut listening).is_pending());
    }
    let mut watched = place.watched().await;
    watched.sort_by_key(|node| node.rsplit_once('-').map(|(_, sequence)| sequence.to_owned()));
    let expected: Vec<_> = claims[..5].iter().enumerate().map(node).collect();
    assert_eq!(watched, expected);
}

/// It is told by that one's claim, and then watches like anybody else.
async fn told(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let claims: Vec<_> = (0..4).map(|_| claim().fair()).collect();
    take(&driver, &claims[0]).await;
    for claim in &claims[1..] {
        refused(&driver, claim).await;
    }
    for (at, held) in claims[..3].iter().enumerate() {
        {
            let listening = claims[at + 1..].iter().map(|claim| driver.changed(claim));
            let mut listening = pin!(join_all(listening));
            while place.watched().await.is_empty() {
                assert!(poll!(&mut listening).is_pending());
            }
            // By the time the servers have answered this they know of every watch.
            assert!(matches!(driver.renew(held).await.unwrap(), Renewal::Held(_)));
            assert!(poll!(&mut listening).is_pending());
            assert_eq!(place.watched().await, [node((at, held))]);
        }
        driver.release(held).await.unwrap();
        assert!(matches!(driver.changed(&claims[at + 1]).await, Change::Granted(_)));
    }
}

/// What the claim's node is called that stands there.
fn node((at, claim): (usize, &Claim)) -> String {
    format!("{FOLDER}/{}-{at:010}", claim.owner())
}

async fn next(server: String) {
    let place = Place::on(&server).await;
    let (one, other) = (driver(&place.url).await, driver(&place.url).await);
    let (held, waiting) = (claim(), claim().waiting());
    let first = take(&one, &held).await;
    refused(&other, &waiting).await;
    let mut listening = pin!(other.changed(&waiting));
    assert!(poll!(&mut listening).is_pending());
    one.release(&held).await.unwrap();
    let Change::Granted(grant) = listening.await else { panic!("asked to ask again") };
    let token = grant.fencing_token().unwrap();
    assert!(token > first);
    assert_eq!(take(&other, &waiting).await, token);
    let [node] = &place.nodes().await[..] else { panic!("more than one node") };
    assert_eq!(place.node(node).await.1.czxid, i64::try_from(token.get()).unwrap());
}

/// Of one driver, as long as no other one's stands between them.
async fn row(server: String) {
    let place = Place::on(&server).await;
    let (ours, theirs) = (driver(&place.url).await, driver(&place.url).await);
    let claims = [claim(), claim().fair(), claim().fair()];
    take(&ours, &claims[0]).await;
    refused(&ours, &claims[1]).await;
    refused(&ours, &claims[2]).await;
    let (other, last) = (claim().fair(), claim().fair());
    refused(&theirs, &other).await;
    refused(&ours, &last).await;
    for pair in claims.windows(2) {
        let mut listening = pin!(ours.changed(&pair[1]));
        assert!(poll!(&mut listening).is_pending());
        ours.release(&pair[0]).await.unwrap();
        assert!(matches!(listening.await, Change::Granted(_)));
    }
    ours.release(&claims[2]).await.unwrap();
    take(&theirs, &other).await;
    theirs.release(&other).await.unwrap();
    assert_eq!(ours.changed(&last).await, Change::AskAgain, "whether it is the first is not known");
    take(&ours, &last).await;
}

async fn together(server: Server) {
    const WAITERS: usize = 100;
    let place = Place::made_on(&server.url()).await;
    let driver = driver(&place.url).await;
    take(&driver, &claim()).await;
    let waiting: Vec<_> = (0..WAITERS).map(|_| claim().fair()).collect();
    let before = place.packets().await;
    join_all(waiting.iter().map(|claim| refused(&driver, claim))).await;
    let asked = place.packets().await - before;
    assert!((WAITERS..WAITERS * 3 / 2).contains(&asked), "{WAITERS} asks took {asked} packets");
    assert_eq!(place.nodes().await.len(), 1 + WAITERS);
}

async fn passed_on(server: Server) {
    const WAITERS: usize = 100;
    let place = Place::made_on(&server.url()).await;
    let driver = driver(&place.url).await;
    let claims: Vec<_> = (0..=WAITERS).map(|_| claim().fair()).collect();
    take(&driver, &claims[0]).await;
    for claim in &claims[1..] {
        refused(&driver, claim).await;
    }
    let before = place.packets().await;
    for pair in claims.windows(2) {
        let mut next = pin!(driver.changed(&pair[1]));
        assert!(poll!(&mut next).is_pending());
        driver.release(&pair[0]).await.unwrap();
        assert!(matches!(next.await, Change::Granted(_)));
    }
    let packets = place.packets().await - before;
    assert!((WAITERS..WAITERS * 3 / 2).contains(&packets), "{packets} packets for {WAITERS}");
}

async fn asks_again(server: String) {
    let place = Place::made_on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    hide_queue(&place).await;
    refused(&driver, &waiting).await;
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

/// From everybody, who may still stand in it.
async fn hide_queue(place: &Place) {
    let unlisted = Acl::new(Permission::CREATE | Permission::DELETE, AuthId::anyone());
    place.raw.set_acl(&place.path(FOLDER), &[unlisted], None).await.unwrap();
}

async fn unseen(server: String) {
    let place = Place::made_on(&server).await;
    let driver = driver(&place.url).await;
    hide_queue(&place).await;
    for claim in [claim(), claim().fair()] {
        let (kind, text) = kind(driver.try_acquire(&claim).await);
        assert_eq!(kind, ErrorKind::Denied, "{text}");
    }
    let folder = place.raw.check_stat(&place.path(FOLDER)).await.unwrap().unwrap();
    assert_eq!(folder.num_children, 0);
}

/// As while credentials are being introduced.
async fn unread(server: String) {
    let place = Place::made_on(&server).await;
    let theirs = driver(&place.url.replace("zookeeper://", "zookeeper://app:secret@")).await;
    let ours = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().waiting());
    take(&theirs, &held).await;
    refused(&ours, &waiting).await;
    let mut listening = pin!(ours.changed(&waiting));
    assert!(poll!(&mut listening).is_pending());
    // By the time the servers have answered this they have refused the watch.
    refused(&ours, &claim()).await;
    assert!(poll!(&mut listening).is_pending());
    theirs.release(&held).await.unwrap();
    assert_eq!(listening.await, Change::AskAgain);
    take(&ours, &waiting).await;
}

async fn further_back(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, before, waiting) = (claim(), claim().fair(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &before).await;
    refused(&driver, &waiting).await;
    assert_eq!(driver.release(&before).await.unwrap(), Release::NotHeld);
    assert_eq!(driver.changed(&waiting).await, Change::AskAgain);
    // Once, and not at every call.
    assert!(poll!(pin!(driver.changed(&waiting))).is_pending());
    refused(&driver, &waiting).await;
    driver.release(&held).await.unwrap();
    assert!(matches!(driver.changed(&waiting).await, Change::Granted(_)));
}

async fn leaving(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    {
        let mut listening = pin!(driver.changed(&waiting));
        while place.watched().await.is_empty() {
            assert!(poll!(&mut listening).is_pending());
        }
    }
    // One that is not awaited any more stays, for the next call.
    assert_eq!(place.watched().await.len(), 1);
    driver.release(&waiting).await.unwrap();
    place.watches_come_to(0).await;
    assert_eq!(place.nodes().await.len(), 1);
}

/// After its own lease, which is shorter than the session.
async fn abandoned(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&with(&place.url, "ttl=10m")).await;
    let (held, gone, waiting) = (claim(), claim_for(millis(500)).fair(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &gone).await;
    refused(&driver, &waiting).await;
    place.nodes_come_to(2).await;
    driver.release(&held).await.unwrap();
    take(&driver, &waiting).await;
}

/// Behind a crowd whose asks take long, when its place would have been removed had it not asked.
async fn in_line(server: Server) {
    /// More than pass at a time.
    const CROWD: usize = 40;
    const LEASE: Duration = millis(4000);
    let place = Place::made_on(&server.url()).await;
    let driver = driver(&with(&place.url, "ttl=1s")).await;
    take(&driver, &claim()).await;
    let (asks_again, does_not) = (claim_for(LEASE).fair(), claim_for(LEASE + millis(300)).fair());
    let placed = Instant::now();
    refused(&driver, &asks_again).await;
    refused(&driver, &does_not).await;
    sleep_until(placed + LEASE - millis(500)).await;
    let crowd: Vec<_> = (0..CROWD).map(|_| claim().fair()).collect();
    let mut asking = pin!(join_all(crowd.iter().map(|claim| refused(&driver, claim))));
    assert!(poll!(&mut asking).is_pending());
    let mut in_line = pin!(refused(&driver, &asks_again));
    assert!(poll!(&mut in_line).is_pending());
    let asked = Instant::now();
    // None of them gets on meanwhile. The one place goes, in a later round than the other would.
    let is_there = |nodes: &[String], claim: &Claim| {
        nodes.iter().any(|node| node.starts_with(&claim.owner().to_string()))
    };
    let nodes = loop {
        let nodes = place.nodes().await;
        if !is_there(&nodes, &does_not) {
            break nodes;
        }
        sleep(millis(2)).await;
    };
    // On a machine that stood still it has asked too late, or waited for too long.
    let in_time = asked < placed + LEASE && asked.elapsed() < LEASE;
    assert!(is_there(&nodes, &asks_again) || !in_time);
    tokio::join!(asking, in_line);
}

async fn later(server: String) {
    let place = Place::made_on(&server).await;
    let driver = driver(&with(&place.url, "ttl=3s")).await;
    let (held, gone, waiting) = (claim(), claim_for(millis(500)).fair(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &gone).await;
    refused(&driver, &waiting).await;
    let permit = async |permission| {
        let acl = [Acl::new(permission, AuthId::anyone())];
        place.raw.set_acl(&place.path(FOLDER), &acl, None).await.unwrap();
    };
    permit(Permission::READ | Permission::CREATE | Permission::ADMIN).await;
    let mut listening = pin!(driver.changed(&waiting));
    while place.watched().await.is_empty() {
        assert!(poll!(&mut listening).is_pending());
    }
    // It was given up, and is there.
    assert_eq!(place.nodes().await.len(), 3);
    permit(Permission::ALL).await;
    assert_eq!(listening.await, Change::AskAgain);
    assert_eq!(place.nodes().await.len(), 2);
}

async fn removed(server: String) {
    let place = Place::on(&server).await;
    let driver = driver(&place.url).await;
    let (held, waiting) = (claim(), claim().fair());
    take(&driver, &held).await;
    refused(&driver, &waiting).await;
    let node = format!("{}/{}-0000000001", place.path(FOLDER), waiting.owner());
    place.raw.delete(&node, None).await.unwrap();
    refused(&driver, &waiting).await;
    assert_eq!(place.nodes().await.len(), 2);
    driver.release(&held).await.unwrap();
    take(&driver, &waiting).await;
}

/// Acquisitions, releases and waits that are dropped after any number of polls.
async fn dropped(server: String) {
    let place = Place::on(&server).await;
    let locker = Locker::new(driver(&place.url).await);
    let lock = locker.lock(NAME).unwrap();
    let mut polls = 1;
    while polled(polls, lock.acquire()).await.is_none() {
        polls += 1;
    }
    assert!(polls > 1, "it took no wait for the server");
    place.nodes_come_to(0).await;

    let mut polls = 1;
    while polled(polls, lock.acquire().await.unwrap().release()).await.is_none() {
        polls += 1;
    }
    place.nodes_come_to(0).await;

    let other = Locker::new(driver(&place.url).await);
    let guard = other.lock(NAME).unwrap().acquire().await.unwrap();
    for polls in 1.. {
        // The holder watches its own node.
        place.watches_come_to(1).await;
        let waits = select! {
            taken = polled(polls, lock.acquire()) => taken.is_some(),
            () = place.watches_come_to(2) => true,
        };
        if waits {
            break;
        }
    }
    place.nodes_come_to(1).await;
    guard.release().await.unwrap();
    place.nodes_come_to(0).await;
    place.watches_come_to(0).await;
}

/// What comes of a future that is dropped if it is not ready at that poll.
async fn polled<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
