//! Renewals, and releases.

use std::time::Duration;

use lockkit_core::driver::{Driver as _, ErrorKind, Release, Renewal};
use lockkit_core::{AcquireOptions, Lease, Locker};
use lockkit_testkit::Log;
use tokio::time::{Instant, sleep};

use crate::support::{Mode, TestNode, claim, over};
use crate::{TTL, left_behind, nodes, take};

#[tokio::test(start_paused = true)]
async fn a_renewal_takes_a_majority_that_still_had_it() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[0].forget();
    nodes[1].forget();
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    // Both have it again; another two may lose it now.
    nodes[2].forget();
    nodes[3].forget();
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    nodes[..3].iter().for_each(TestNode::forget);
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(left_behind(&nodes).await, 0, "nothing of a lost hold stays");
}

/// Nodes that come back just when others go down.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_has_taken_the_hold_at_nodes_that_are_back() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    nodes[..2].iter().for_each(|node| node.set(Mode::Down));
    take(&driver, &held).await.unwrap();
    nodes[..2].iter().for_each(|node| node.set(Mode::Up));
    nodes[2].set(Mode::Down);
    driver.renew(&held).await.unwrap_err();
    // Nodes that did not answer are not asked again at once.
    for _ in 0..2 {
        sleep(Duration::from_secs(2)).await;
        _ = driver.renew(&held).await;
    }
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    nodes[2].set(Mode::Up);
    driver.release(&held).await.unwrap();
    sleep(TTL).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

/// As where a guard is dropped while a renewal is under way.
#[tokio::test(start_paused = true)]
async fn what_a_renewal_would_take_again_is_not_taken_after_the_release() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    // It is lost at one node, which is the first to say so.
    nodes[2].forget();
    for (node, delay) in nodes.iter().zip([100, 100, 50]) {
        node.set(Mode::Slow(Duration::from_millis(delay)));
    }
    let release = async {
        sleep(Duration::from_millis(10)).await;
        driver.release(&held).await.unwrap()
    };
    let (renewal, _) = tokio::join!(driver.renew(&held), release);
    assert!(matches!(renewal, Ok(Renewal::Held(_))), "{renewal:?}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

/// As nodes do that are further away.
#[tokio::test(start_paused = true)]
async fn a_node_that_says_late_that_it_has_lost_the_hold_is_asked_for_it_again() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    for node in &nodes[3..] {
        node.forget();
        node.set(Mode::Slow(Duration::from_millis(5)));
    }
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    sleep(Duration::from_millis(100)).await;
    nodes[..2].iter().for_each(TestNode::forget);
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
}

/// As Redis does with too few replicas: it gives the lock back, and that may come late.
#[tokio::test(start_paused = true)]
async fn what_was_taken_again_without_an_answer_may_be_undone() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[2].forget();
    nodes[2].loses_the_answer_to_an_ask();
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    // It is asked again by then.
    sleep(held.call_limit() + Duration::from_millis(10)).await;
    nodes[0].set(Mode::Down);
    driver.renew(&held).await.unwrap_err();
    // By then nothing is on the way any more.
    nodes[0].set(Mode::Up);
    sleep(TTL / 2).await;
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    sleep(TTL / 2).await;
    nodes[0].set(Mode::Down);
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
}

#[tokio::test(start_paused = true)]
async fn what_a_renewal_would_take_again_is_not_taken_after_the_loss() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[2].forget();
    nodes[2].set(Mode::Slow(Duration::from_millis(500)));
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
    nodes[..2].iter().for_each(TestNode::forget);
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    sleep(TTL / 2).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_answers_is_in_doubt() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[..3].iter().for_each(|node| node.set(Mode::Down));
    assert_eq!(driver.renew(&held).await.unwrap_err().kind(), ErrorKind::Unreachable);
    nodes[0].set(Mode::Up);
    sleep(Duration::from_millis(1)).await;
    assert!(matches!(driver.renew(&held).await, Ok(Renewal::Held(_))));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_names_each_node_that_gave_no_vote() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[1].forget();
    nodes[2].set(Mode::Down);
    let reason = driver.renew(&held).await.unwrap_err().into_source().to_string();
    let told =
        "1 of 3 nodes gave a vote, 2 are needed (node 1: it has lost the hold; node 2: it is down)";
    assert_eq!(reason, told);
}

#[tokio::test(start_paused = true)]
async fn what_came_of_a_node_that_had_lost_the_hold_is_logged() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let (held, other) = (claim(TTL), claim(TTL));
    take(&driver, &held).await.unwrap();
    let log = Log::start();
    let is_told = async |words: &str| {
        driver.renew(&held).await.unwrap();
        sleep(held.call_limit() + Duration::from_millis(10)).await;
        assert!(log.line(words).is_some(), "{log:?}");
    };
    nodes[2].forget();
    is_told("was lost there, and is taken again node=node 2 lock=wanted").await;
    nodes[2].forget();
    nodes[2].try_acquire(&other).await.unwrap();
    is_told("not taken again node=node 2 lock=wanted why=somebody else has it").await;
    nodes[2].forget();
    nodes[2].loses_the_answer_to_an_ask();
    is_told("not taken again node=node 2 lock=wanted why=the answer was lost").await;
}

/// Nor does the release overtake the ask.
#[tokio::test(start_paused = true)]
async fn a_node_is_released_after_it_has_answered() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[1].set(Mode::Slow(Duration::from_secs(1)));
    let claim = claim(TTL);
    let (asked, ()) = tokio::join!(driver.try_acquire(&claim), async {
        sleep(Duration::from_millis(10)).await;
        nodes[1].set(Mode::Up);
    });
    asked.unwrap_err();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes[1].grants(), 1);
    assert_eq!(left_behind(&nodes).await, 0);
}

/// One that was repeated, too: the answer to the second says nothing about the first.
#[tokio::test(start_paused = true)]
async fn a_late_release_undoes_no_later_grant() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let holder = claim(TTL);
    for node in &nodes[..2] {
        node.try_acquire(&holder).await.unwrap();
    }
    nodes[2].delays_a_release(Duration::from_secs(4));
    let again = claim(TTL);
    assert!(take(&driver, &again).await.is_none());
    sleep(Duration::from_secs(3)).await;
    assert!(nodes[2].is_idle(), "it was released once more");
    for node in &nodes[..2] {
        node.release(&holder).await.unwrap();
    }
    // With the vote of the last node there would be a majority, which the first release ends.
    nodes[1].set(Mode::Down);
    assert!(take(&driver, &again).await.is_none());
    let other = claim(TTL);
    assert!(take(&driver, &other).await.is_some());
    sleep(Duration::from_secs(3)).await;
    assert!(matches!(driver.renew(&other).await, Ok(Renewal::Held(_))));
    driver.release(&other).await.unwrap();
    // By then nothing is on the way any more, and the claim has not had to wait for a whole lease.
    assert!(take(&driver, &again).await.is_some());
}

/// What was repeated finds nothing, since the first has done it.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answers_were_lost_is_no_lost_hold() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[..2].iter().for_each(|node| node.set(Mode::Cut));
    let (released, ()) = tokio::join!(driver.release(&held), async {
        sleep(Duration::from_millis(1)).await;
        nodes[..2].iter().for_each(|node| node.set(Mode::Up));
    });
    assert_eq!(released.unwrap(), Release::Freed);
    assert_eq!(left_behind(&nodes).await, 0);
    // By now that is for sure.
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_release_reaches_nodes_that_come_back() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    nodes[0].set(Mode::Down);
    nodes[1].set(Mode::Hung);
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    assert_eq!(left_behind(&nodes).await, 2);
    nodes.iter().for_each(|node| node.set(Mode::Up));
    sleep(TTL / 2).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

/// One node has refused the hold, as where it had not heard of the release before, and another is
/// known to be silent: what that one would say changes nothing.
#[tokio::test(start_paused = true)]
async fn a_release_waits_for_no_node_that_is_silent() {
    let nodes = nodes::<3>();
    let (driver, held) = (over(&nodes).await, claim(TTL));
    take(&driver, &held).await.unwrap();
    nodes[1].set(Mode::Hung);
    driver.renew(&held).await.unwrap();
    sleep(held.call_limit()).await;
    nodes[2].forget();
    let start = Instant::now();
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    assert!(start.elapsed() < held.call_limit() / 2, "{:?}", start.elapsed());
}

/// Without a majority the release is repeated, a quarter of a lease after the answer, and once after
/// the lease.
#[tokio::test(start_paused = true)]
async fn a_node_is_not_asked_to_release_after_the_lease() {
    for mode in [Mode::Down, Mode::Hung] {
        let nodes = nodes::<3>();
        let (driver, held) = (over(&nodes).await, claim(TTL));
        take(&driver, &held).await.unwrap();
        nodes[..2].iter().for_each(|node| node.set(mode));
        for _ in 0..4 {
            driver.release(&held).await.unwrap_err();
            sleep(TTL / 4).await;
        }
        let requests = || nodes.each_ref().map(TestNode::requests);
        let before = requests();
        sleep(5 * TTL).await;
        assert_eq!(requests(), before, "{mode:?}");
    }
}

/// Though it is repeated for as long as no majority answers, which may be for a long lease.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_is_asked_for_a_release_about_once() {
    for mode in [Mode::Down, Mode::Hung] {
        let nodes = nodes::<3>();
        let (driver, held) = (over(&nodes).await, claim(360 * TTL));
        take(&driver, &held).await.unwrap();
        nodes[..2].iter().for_each(|node| node.set(mode));
        for _ in 0..50 {
            driver.release(&held).await.unwrap_err();
        }
        let requests = || [nodes[0].requests(), nodes[1].requests()];
        nodes.iter().for_each(|node| node.set(Mode::Up));
        let before = requests();
        sleep(TTL).await;
        assert_eq!(left_behind(&nodes).await, 0);
        for (now, before) in requests().into_iter().zip(before) {
            assert!((1..=2).contains(&(now - before)), "{mode:?}: {} requests", now - before);
        }
    }
}

/// Where it lasts for as long as it was extended to, and not only for as long as it was taken for.
#[tokio::test(start_paused = true)]
async fn an_extended_hold_is_released_at_nodes_that_come_back_later() {
    let nodes = nodes::<3>();
    let locker = Locker::builder(over(&nodes).await).ttl(TTL).build().unwrap();
    let lock = locker.lock("wanted").unwrap().leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    guard.extend(6 * TTL).await.unwrap();
    nodes[0].set(Mode::Down);
    guard.release().await.unwrap();
    sleep(3 * TTL).await;
    nodes[0].set(Mode::Up);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(left_behind(&nodes).await, 0);
}
