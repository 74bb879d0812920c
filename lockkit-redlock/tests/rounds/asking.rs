//! Asks: what a majority grants, and what becomes of what it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use lockkit_core::Locker;
use lockkit_core::driver::{
    Attempt, Driver as _, ErrorKind, Inspect as _, Release, Renewal, Vouch,
};
use lockkit_redlock::RedlockDriver;
use tokio::time::{Instant, sleep};

use crate::support::{Mode, TestNode, claim, claim_to, nobody_there, over, settings};
use crate::{TTL, apart, left_behind, nodes, take};

#[tokio::test(start_paused = true)]
async fn nodes_that_hang_or_are_down_hold_nobody_up() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    for (mode, other) in
        [(Mode::Hung, Mode::Hung), (Mode::Down, Mode::Hung), (Mode::Down, Mode::Down)]
    {
        nodes[0].set(mode);
        nodes[3].set(other);
        let (claim, start) = (claim(TTL), Instant::now());
        assert!(take(&driver, &claim).await.is_some());
        assert!(matches!(driver.renew(&claim).await, Ok(Renewal::Held(_))));
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
        // The release lingers a moment for those that it does not know yet.
        assert!(start.elapsed() <= Duration::from_millis(1));
    }
}

/// Else what many claims want of it slows down those that come after them.
#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_is_asked_by_one_at_a_time() {
    for mode in [Mode::Hung, Mode::Down] {
        let nodes = nodes::<3>();
        let driver = over(&nodes).await;
        nodes[0].set(mode);
        let first = claim(TTL);
        take(&driver, &first).await.unwrap();
        driver.release(&first).await.unwrap();
        // It is known by then.
        sleep(Duration::from_millis(51)).await;
        let (before, start) = (nodes[0].requests(), Instant::now());
        for _ in 0..1_000 {
            let claim = claim(TTL);
            take(&driver, &claim).await.unwrap();
            assert!(matches!(driver.renew(&claim).await, Ok(Renewal::Held(_))));
            assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        sleep(TTL / 2).await;
        let asked = nodes[0].requests() - before;
        assert!(asked < 50, "{mode:?}: {asked} requests");
        // When it is back it counts at once, and nothing is left there.
        nodes[0].set(Mode::Up);
        nodes[1].set(Mode::Down);
        let last = claim(TTL);
        while driver.try_acquire(&last).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(start.elapsed() < TTL, "{mode:?}");
        driver.release(&last).await.unwrap();
        assert_eq!(left_behind(&[nodes[0].clone()]).await, 0, "{mode:?}");
    }
}

/// The answers of the nodes are there by then, but nobody has read them yet.
#[tokio::test]
async fn nobody_is_sent_away_because_the_process_stood_still() {
    let nodes = nodes::<3>();
    let driver = settings(&nodes, "node_timeout=1s").await.unwrap();
    nodes.iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(1))));
    let first = claim(TTL);
    let mut asking = Box::pin(driver.try_acquire(&first));
    assert!(poll!(&mut asking).is_pending());
    std::thread::sleep(Duration::from_millis(1_100));
    let others: [_; 10] = std::array::from_fn(|at| claim_to(&at.to_string(), TTL));
    let asking_too = join_all(others.iter().map(|claim| driver.try_acquire(claim)));
    let (answer, answers) = tokio::join!(asking, asking_too);
    for answer in answers.into_iter().chain([answer]) {
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    }
}

/// A node that fails is no answer: others that are only slower are waited for.
#[tokio::test(start_paused = true)]
async fn a_contended_round_is_not_given_up_before_a_majority_has_answered() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let other = settings(&nodes[1..2], "allow=single").await.unwrap();
    take(&other, &claim(TTL)).await.unwrap();
    nodes[0].set(Mode::Down);
    nodes[3..].iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(20))));
    assert!(take(&driver, &claim(TTL)).await.is_some());
}

/// Nobody is asked then, but what was the matter is known.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_left_alone_is_named_with_what_was_the_matter() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[..2].iter().for_each(|node| node.set(Mode::Down));
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    let before = nodes[0].requests();
    let reason = driver.try_acquire(&claim(TTL)).await.unwrap_err().into_source().to_string();
    assert_eq!(nodes[0].requests(), before);
    assert!(reason.contains("node 0: it answers nobody: it is down"), "{reason}");
}

/// That one node denies something is not what keeps a majority away.
#[tokio::test(start_paused = true)]
async fn what_lasts_at_a_majority_is_what_is_told() {
    for (denying, expected) in [(1, ErrorKind::Unreachable), (3, ErrorKind::Denied)] {
        let nodes = nodes::<5>();
        let (driver, held) = (over(&nodes).await, claim(TTL));
        take(&driver, &held).await.unwrap();
        nodes[..3].iter().for_each(|node| node.set(Mode::Down));
        nodes[..denying].iter().for_each(|node| node.set(Mode::Denying));
        let asked = driver.try_acquire(&claim(TTL)).await.unwrap_err();
        let renewed = driver.renew(&held).await.unwrap_err();
        assert_eq!((asked.kind(), renewed.kind()), (expected, expected), "{denying} deny it");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_does_not_wait_for_slow_nodes() {
    let slow = Duration::from_millis(500);
    for (refusing, at_most) in [(2, slow / 100), (3, Duration::ZERO)] {
        let nodes = nodes::<5>();
        nodes[3..].iter().for_each(|node| node.set(Mode::Slow(slow)));
        let driver = over(&nodes).await;
        let before = claim(TTL);
        take(&driver, &before).await.unwrap();
        driver.release(&before).await.unwrap();
        // Their pace is known by then.
        sleep(slow * 4).await;
        let other = claim(TTL);
        for node in &nodes[..refusing] {
            let alone = settings(std::slice::from_ref(node), "allow=single").await.unwrap();
            take(&alone, &other).await.unwrap();
        }
        let start = Instant::now();
        assert!(take(&driver, &claim(TTL)).await.is_none());
        assert!(start.elapsed() <= at_most, "{refusing}: {:?}", start.elapsed());
    }
}

/// A release is known when a majority has it. Whoever asks then is refused by a node that hears of
/// it last, and the one that decides may take some milliseconds.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_released_is_granted_though_one_node_lags() {
    let nodes = nodes::<3>();
    let (one, other) = (over(&nodes).await, over(&nodes).await);
    let first = claim(TTL);
    take(&one, &first).await.unwrap();
    nodes[2].set(Mode::Slow(Duration::from_millis(30)));
    assert_eq!(one.release(&first).await.unwrap(), Release::Freed);
    nodes[2].set(Mode::Up);
    nodes[1].set(Mode::Slow(Duration::from_millis(5)));
    assert!(take(&other, &claim(TTL)).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_nothing_is_left() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    // Nor is a place of one that waits: nobody releases what was not answered.
    let other = settings(&nodes[4..], "allow=single").await.unwrap();
    let held = claim(100 * TTL);
    take(&other, &held).await.unwrap();
    for mode in [Mode::Down, Mode::Hung, Mode::Mute] {
        nodes[..4].iter().for_each(|node| node.set(Mode::Up));
        nodes[..3].iter().for_each(|node| node.set(mode));
        driver.try_acquire(&claim(TTL).waiting()).await.unwrap_err();
    }
    nodes.iter().for_each(|node| node.set(Mode::Up));
    sleep(TTL / 2).await;
    other.release(&held).await.unwrap();
    assert_eq!(left_behind(&nodes).await, 0);
    for mode in [Mode::Down, Mode::Hung, Mode::Mute] {
        nodes[..3].iter().for_each(|node| node.set(mode));
        let claim = claim(TTL);
        let error = driver.try_acquire(&claim).await.unwrap_err();
        let expected = if mode == Mode::Down { ErrorKind::Unreachable } else { ErrorKind::Unknown };
        assert_eq!(error.kind(), expected, "{mode:?}");
        let reason = error.into_source().to_string();
        assert!(reason.contains("2 of 5 nodes gave a vote, 3 are needed"), "{reason}");
        assert_eq!(left_behind(&nodes[3..]).await, 0, "{mode:?}");
        // What a mute node has granted goes when it can be told.
        nodes[..3].iter().for_each(|node| node.set(Mode::Up));
        sleep(TTL / 2).await;
        assert_eq!(left_behind(&nodes).await, 0, "{mode:?}");
    }
}

/// Though the nodes that failed have done nothing.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_given_back_is_in_doubt() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[..2].iter().for_each(|node| node.set(Mode::Down));
    nodes[2].delays_a_release(Duration::from_secs(2));
    let error = driver.try_acquire(&claim(TTL)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_eq!(left_behind(&nodes).await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_late_grant_of_a_round_that_failed_is_given_back() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[1].set(Mode::Slow(Duration::from_secs(1)));
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    sleep(Duration::from_secs(1) + Duration::from_millis(1)).await;
    assert_eq!(nodes[1].grants(), 1);
    // The release is as slow.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

/// As of a program that tries once and ends.
#[tokio::test(start_paused = true)]
async fn a_late_grant_is_given_back_though_the_driver_is_closed() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let holder = claim(TTL);
    for node in &nodes[..2] {
        node.try_acquire(&holder).await.unwrap();
    }
    nodes[2].set(Mode::Slow(Duration::from_millis(200)));
    nodes[2].closes();
    assert!(take(&driver, &claim(TTL)).await.is_none());
    driver.close().await;
    assert_eq!(nodes[2].grants(), 1);
    assert!(nodes[2].is_idle());
}

/// Nor is what hangs waited for.
#[tokio::test(start_paused = true)]
async fn a_driver_is_closed_soon_although_a_node_hangs() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[2].set(Mode::Hung);
    let claim = claim(TTL);
    take(&driver, &claim).await.unwrap();
    driver.release(&claim).await.unwrap();
    let begun = Instant::now();
    driver.close().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_closed_at_once_although_a_node_is_yet_to_be_connected_to() {
    let nodes = nodes::<2>();
    let named = ["one", "two"].into_iter().zip(nodes);
    let connect = || async {
        sleep(Duration::from_secs(5)).await;
        Err::<TestNode, _>(nobody_there())
    };
    let driver = named
        .fold(RedlockDriver::builder(), |driver, (name, node)| driver.node(name, node))
        .node_at("three", connect)
        .connect()
        .await
        .unwrap();
    let begun = Instant::now();
    driver.close().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_is_not_asked_again_and_again() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[1].set(Mode::Hung);
    let claim = claim(TTL);
    for _ in 0..10 {
        driver.try_acquire(&claim).await.unwrap_err();
    }
    nodes[1].set(Mode::Up);
    sleep(TTL).await;
    assert_eq!(nodes[1].asks(), 1);
}

/// A straggler of the first round must neither take nor remove what the second one decides.
#[tokio::test(start_paused = true)]
async fn what_is_late_from_one_round_leaves_the_next_alone() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[1].set(Mode::Slow(Duration::from_millis(300)));
    let claim = claim(TTL);
    driver.try_acquire(&claim).await.unwrap_err();
    nodes[0].set(Mode::Up);
    assert!(take(&driver, &claim).await.is_some());
    sleep(Duration::from_secs(2)).await;
    let status = driver.look(claim.name()).await.unwrap();
    assert_eq!(status.holder().unwrap().owner(), claim.owner());
    assert!(matches!(driver.renew(&claim).await, Ok(Renewal::Held(_))));
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_is_collected_and_a_slow_majority_is_none() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Slow(Duration::from_millis(200)));
    let held = claim(TTL);
    assert!(take(&driver, &held).await.is_some());
    sleep(Duration::from_millis(201)).await;
    assert_eq!(nodes[0].grants(), 1);
    driver.release(&held).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(left_behind(&nodes).await, 0);

    nodes[..3].iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(200))));
    assert!(driver.try_acquire(&claim(TTL)).await.is_err());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(left_behind(&nodes).await, 0);
}

/// The grant counts from before the first request, with each node's own lease.
#[tokio::test(start_paused = true)]
async fn the_vouch_is_the_smallest_of_the_majority() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[2].vouch_for(Duration::from_secs(4));
    let held = claim(TTL);
    assert_eq!(take(&driver, &held).await, Some(Duration::from_secs(4)));
    nodes[0].set(Mode::Up);
    sleep(Duration::from_millis(1)).await;
    assert!(matches!(
        driver.renew(&held).await,
        Ok(Renewal::Held(Vouch::Lease { ttl, .. })) if ttl == Duration::from_secs(4)
    ));
    // By the next one the node that was down has it, too.
    sleep(Duration::from_millis(1)).await;
    assert!(matches!(
        driver.renew(&held).await,
        Ok(Renewal::Held(Vouch::Lease { ttl, .. })) if ttl == TTL
    ));
    // What is left of a lease must be worth having.
    nodes[1].vouch_for(Duration::from_millis(900));
    nodes[2].vouch_for(Duration::from_millis(900));
    driver.release(&held).await.unwrap();
    let error = driver.try_acquire(&claim(TTL)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let reason = error.into_source().to_string();
    assert!(reason.contains("all but over"), "{reason}");
    assert_eq!(left_behind(&nodes).await, 0);
}

#[tokio::test(start_paused = true)]
async fn ten_contenders_all_get_their_turn() {
    let nodes = nodes::<5>();
    nodes.iter().for_each(|node| node.set(Mode::Fickle(Duration::from_millis(20))));
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let locker = apart(over(&nodes).await);
        let (inside, done) = (inside.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let lock = locker.lock("contended").unwrap();
                let guard = lock.acquire_timeout(Duration::from_secs(120)).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(Duration::from_millis(1)).await;
                assert!(guard.is_held());
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            }
            locker.shutdown().await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 200);
    assert_eq!(left_behind(&nodes).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquisition_leaves_nothing() {
    let nodes = nodes::<5>();
    nodes[..4].iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(3))));
    nodes[4].set(Mode::Mute);
    let locker = Locker::new(over(&nodes).await);
    let lock = locker.lock("dropped").unwrap();
    for polls in 0..100 {
        let mut acquiring = Box::pin(lock.acquire());
        let mut ended = false;
        for _ in 0..polls {
            tokio::select! {
                biased;
                guard = &mut acquiring => {
                    guard.unwrap().release().await.unwrap();
                    ended = true;
                    break;
                }
                () = sleep(Duration::from_micros(500)) => (),
            }
        }
        drop(acquiring);
        nodes[4].set(Mode::Up);
        sleep(Duration::from_secs(120)).await;
        assert_eq!(left_behind(&nodes).await, 0, "after {polls} polls");
        if ended {
            assert!(polls > 2);
            return;
        }
        nodes[4].set(Mode::Mute);
    }
    panic!("it never ended");
}
