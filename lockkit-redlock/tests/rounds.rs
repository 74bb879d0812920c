//! The quorum over nodes in memory that go down, hang and forget, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver, ErrorKind, Inspect, Release, Renewal, Vouch};
use lockkit_core::{AcquireOptions, Error, Lease, Locker};
use lockkit_redlock::RedlockDriver;
use support::{Mode, TestNode, claim, over, settings};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(10);

fn nodes<const N: usize>() -> [TestNode; N] {
    std::array::from_fn(|_| TestNode::new())
}

async fn take(driver: &RedlockDriver, claim: &Claim) -> Option<Duration> {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => match grant.vouched() {
            Vouch::Lease { ttl, .. } => Some(ttl),
            other => panic!("{other:?}"),
        },
        Attempt::Taken(_) => None,
        other => panic!("{other:?}"),
    }
}

/// What nodes still have, once everything that was under way has ended.
async fn left_behind(nodes: &[TestNode]) -> usize {
    sleep(Duration::from_millis(1)).await;
    nodes.iter().filter(|node| !node.is_idle()).count()
}

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
        assert!(reason.contains("2 nodes have answered, 3 are needed"), "{reason}");
        assert_eq!(left_behind(&nodes[3..]).await, 0, "{mode:?}");
        // What a mute node has granted goes when it can be told.
        nodes[..3].iter().for_each(|node| node.set(Mode::Up));
        sleep(TTL / 2).await;
        assert_eq!(left_behind(&nodes).await, 0, "{mode:?}");
    }
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

/// What was sent meanwhile may come late, and is waited for no longer than it takes.
#[tokio::test(start_paused = true)]
async fn a_wait_outlives_the_silence_of_a_majority() {
    let (nodes, start) = (nodes::<3>(), Instant::now());
    let locker = Locker::builder(over(&nodes).await).ttl(TTL).build().unwrap();
    nodes[..2].iter().for_each(|node| node.set(Mode::Hung));
    let waiting = tokio::spawn(async move { locker.lock("wanted").unwrap().acquire().await });
    sleep(Duration::from_secs(4)).await;
    nodes[..2].iter().for_each(|node| node.set(Mode::Up));
    drop(waiting.await.unwrap().unwrap());
    assert!(start.elapsed() < TTL, "{:?}", start.elapsed());
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

/// The first majority to answer is not the one that has the renewal.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_is_seen_though_one_node_lags() {
    let nodes = nodes::<5>();
    let (driver, claim) = (over(&nodes).await, claim(TTL));
    take(&driver, &claim).await.unwrap();
    sleep(TTL / 2).await;
    nodes[0].set(Mode::Slow(TTL / 10));
    assert!(matches!(driver.renew(&claim).await, Ok(Renewal::Held(_))));
    nodes[0].set(Mode::Up);
    nodes[3..].iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(5))));
    let status = driver.look(claim.name()).await.unwrap();
    let remaining = status.holder().and_then(|holder| holder.remaining()).unwrap();
    assert!(remaining > TTL * 9 / 10, "{remaining:?}");
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

#[tokio::test(start_paused = true)]
async fn a_node_that_forgot_sits_out() {
    let max_ttl = Duration::from_secs(20);
    let nodes = nodes::<3>();
    nodes[2].is_durable();
    let driver = settings(&nodes, "max_ttl=20s").await.unwrap();
    let held = claim(max_ttl);
    take(&driver, &held).await.unwrap();
    // Two empty nodes would be a majority for anybody.
    nodes[0].restart_empty();
    nodes[1].restart_empty();
    let other = claim(max_ttl);
    let error = driver.try_acquire(&other).await.unwrap_err();
    let reason = error.into_source().to_string();
    assert!(reason.contains("may have forgotten locks that are held"), "{reason}");
    // It is lost to its holder all the same.
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    sleep(max_ttl + Duration::from_millis(900)).await;
    driver.try_acquire(&other).await.unwrap_err();
    sleep(Duration::from_millis(200)).await;
    assert!(take(&driver, &other).await.is_some());

    // A node that keeps its locks need not; one that only begins to has none to keep.
    driver.release(&other).await.unwrap();
    nodes[2].restart_durable();
    nodes[1].set(Mode::Down);
    let other = claim(max_ttl);
    assert!(take(&driver, &other).await.is_some());
    driver.release(&other).await.unwrap();
    for _ in 0..2 {
        nodes[0].restart_durable();
        driver.try_acquire(&claim(max_ttl)).await.unwrap_err();
    }
}

/// The control: this is what the delayed restart is for.
#[tokio::test(start_paused = true)]
async fn without_the_delay_two_hold() {
    let nodes = nodes::<3>();
    let driver = settings(&nodes, "delayed_restart=false").await.unwrap();
    let held = claim(TTL);
    nodes[2].set(Mode::Down);
    take(&driver, &held).await.unwrap();
    nodes[2].set(Mode::Up);
    nodes[0].restart_empty();
    sleep(Duration::from_millis(1)).await;
    assert!(take(&driver, &claim(TTL)).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_just_started_sits_out_for_what_is_left() {
    let nodes = nodes::<3>();
    nodes.iter().for_each(TestNode::restart_empty);
    nodes[0].has_run_for(Duration::from_secs(55));
    nodes[1].has_run_for(Duration::from_secs(58));
    let driver = over(&nodes).await;
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    sleep(Duration::from_millis(6_100)).await;
    assert!(take(&driver, &claim(TTL)).await.is_some());
}

/// As of servers that were updated while nobody locked anything.
#[tokio::test(start_paused = true)]
async fn a_restart_that_is_found_out_late_counts_from_when_it_was() {
    let (hour, nodes) = (Duration::from_secs(3600), nodes::<3>());
    let driver = over(&nodes).await;
    let claim = claim(TTL);
    take(&driver, &claim).await.unwrap();
    driver.release(&claim).await.unwrap();
    sleep(2 * hour).await;
    nodes.iter().for_each(TestNode::restart_empty);
    nodes.iter().for_each(|node| node.has_run_for(hour));
    take(&driver, &claim).await.unwrap();
    driver.release(&claim).await.unwrap();
    // By our clock they have run for less.
    sleep(Duration::from_secs(1)).await;
    nodes.iter().for_each(TestNode::restart_empty);
    nodes.iter().for_each(|node| node.has_run_for(hour));
    driver.try_acquire(&claim).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_middle_of_an_ask_voids_the_answer() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    nodes[0].set(Mode::Down);
    nodes[1].restarts_at_the_next_ask();
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    assert_eq!(left_behind(&nodes).await, 0);
}

#[tokio::test(start_paused = true)]
async fn numbers_that_make_no_sense_are_refused() {
    assert!(matches!(settings(&[], "").await, Err(Error::Config { .. })));
    for (number, allow) in [(1, "single"), (2, "even"), (4, "even")] {
        let nodes: Vec<_> = (0..number).map(|_| TestNode::new()).collect();
        assert!(matches!(settings(&nodes, "").await, Err(Error::Config { .. })), "{number}");
        settings(&nodes, &format!("allow={allow}")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_backend_by_two_names_and_replicas_are_refused() {
    let [one, two] = nodes();
    let twice = [one.clone(), one.clone(), two.clone()];
    let error = settings(&twice, "").await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(format!("{error:?}").contains("same backend"), "{error:?}");
    settings(&twice, "allow=duplicates").await.unwrap();

    let copies = [one, two, TestNode::new()];
    copies[2].is_a_replica();
    let error = settings(&copies, "").await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(format!("{error:?}").contains("replica"), "{error:?}");
    settings(&copies, "allow=replicas").await.unwrap();
}

/// As when names are given to other servers, one name after the other.
#[tokio::test(start_paused = true)]
async fn a_duplicate_has_a_vote_once_the_other_has_moved_on() {
    let nodes = nodes::<3>();
    let driver = settings(&nodes, "max_ttl=20s").await.unwrap();
    nodes[2].set(Mode::Down);
    nodes[1].is_in_the_run_of(&nodes[0]);
    let error = driver.try_acquire(&claim(TTL)).await.unwrap_err();
    assert!(error.into_source().to_string().contains("the same backend as node 0"));
    nodes[0].restart_empty();
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    sleep(Duration::from_secs(22)).await;
    assert!(take(&driver, &claim(TTL)).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_down_at_first_joins_later() {
    let nodes = nodes::<3>();
    let attempts = Arc::new(AtomicUsize::new(0));
    let (late, counted) = (nodes[2].clone(), attempts.clone());
    let driver = RedlockDriver::builder()
        .node("one", nodes[0].clone())
        .node("two", nodes[1].clone())
        .node_at("three", move || {
            let attempt = counted.fetch_add(1, Ordering::Relaxed);
            let late = late.clone();
            async move {
                match attempt {
                    0..3 => Err(support::nobody_there()),
                    _ => Ok(late),
                }
            }
        })
        .connect()
        .await
        .unwrap();
    nodes[0].set(Mode::Down);
    driver.try_acquire(&claim(TTL)).await.unwrap_err();
    sleep(Duration::from_secs(1)).await;
    assert!(take(&driver, &claim(TTL)).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_said() {
    let connect = || async { Err::<TestNode, _>(support::nobody_there()) };
    let nodes = ["one", "two", "three"];
    let driver =
        nodes.iter().fold(RedlockDriver::builder(), |driver, name| driver.node_at(*name, connect));
    let error = driver.connect().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    let text = format!("{error:?}");
    assert!(nodes.iter().all(|name| text.contains(name)), "{text}");
}

#[tokio::test(start_paused = true)]
async fn ten_contenders_all_get_their_turn() {
    let nodes = nodes::<5>();
    nodes.iter().for_each(|node| node.set(Mode::Fickle(Duration::from_millis(20))));
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let locker = Locker::new(over(&nodes).await);
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

/// Who has held and who waits, each by a driver of its own.
async fn pair(nodes: &[TestNode]) -> (Locker, Locker) {
    (Locker::new(over(nodes).await), Locker::new(over(nodes).await))
}

/// By push, without those that are down or do not answer.
#[tokio::test(start_paused = true)]
async fn who_waits_has_the_lock_as_soon_as_it_is_released() {
    for weather in [Mode::Up, Mode::Down, Mode::Hung, Mode::Slow(Duration::from_millis(200))] {
        let nodes = nodes::<5>();
        nodes[..2].iter().for_each(|node| node.set(weather));
        let (one, other) = pair(&nodes).await;
        let (held, wanted) = (one.lock("wanted").unwrap(), other.lock("wanted").unwrap());
        for _ in 0..20 {
            let guard = held.acquire().await.unwrap();
            let waiter = tokio::spawn({
                let wanted = wanted.clone();
                async move { (wanted.acquire().await.unwrap(), Instant::now()) }
            });
            sleep(Duration::from_secs(3).mul_f64(fastrand::f64())).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            let (guard, granted) = waiter.await.unwrap();
            assert_eq!(granted, released, "{weather:?}");
            guard.release().await.unwrap();
        }
    }
}

/// The others go on waiting.
#[tokio::test(start_paused = true)]
async fn a_release_wakes_one_of_many() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    let held = claim(TTL);
    take(&driver, &held).await.unwrap();
    let waiters: Vec<_> = (0..10).map(|_| claim(TTL).waiting()).collect();
    for waiter in &waiters {
        assert!(take(&driver, waiter).await.is_none());
    }
    let mut holder = held;
    for _ in &waiters {
        driver.release(&holder).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let mut woken = Vec::new();
        for waiter in &waiters {
            tokio::select! {
                biased;
                _ = driver.changed(waiter) => woken.push(waiter),
                () = std::future::ready(()) => (),
            }
        }
        assert_eq!(woken.len(), 1);
        assert!(take(&driver, woken[0]).await.is_some());
        holder = woken[0].clone();
    }
    driver.release(&holder).await.unwrap();
    assert_eq!(left_behind(&nodes).await, 0);
}

/// What a node tells is not lost when whoever listens stops, and listens again.
#[tokio::test(start_paused = true)]
async fn news_from_a_part_of_the_nodes_is_kept() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let (held, waiter) = (claim(TTL), claim(TTL).waiting());
    take(&driver, &held).await.unwrap();
    assert!(take(&driver, &waiter).await.is_none());
    for node in &nodes {
        node.release(&held).await.unwrap();
        tokio::select! {
            biased;
            _ = driver.changed(&waiter) => (),
            () = tokio::task::yield_now() => continue,
        }
        assert!(take(&driver, &waiter).await.is_some());
        return;
    }
    panic!("it was never told");
}

/// Each node has another first, so that nobody is told by a majority.
#[tokio::test(start_paused = true)]
async fn waiters_that_are_told_by_different_nodes_do_not_stay_in_each_others_way() {
    for _ in 0..100 {
        let nodes = nodes::<3>();
        let driver = over(&nodes).await;
        let held = claim(TTL);
        take(&driver, &held).await.unwrap();
        let mut waiting = Vec::new();
        for first in 0..3 {
            // It comes to that node before the others do, and to the others after them.
            for (at, node) in nodes.iter().enumerate() {
                let late = Duration::from_millis(if at == first { 1 } else { 20 });
                node.set(Mode::Slow(late));
            }
            let locker = Locker::new(over(&nodes).await);
            let lock = locker.lock("wanted").unwrap();
            waiting.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
                locker.shutdown().await;
            }));
            tokio::task::yield_now().await;
        }
        sleep(Duration::from_millis(30)).await;
        nodes.iter().for_each(|node| node.set(Mode::Fickle(Duration::from_millis(1))));
        let start = Instant::now();
        driver.release(&held).await.unwrap();
        for waiter in waiting {
            waiter.await.unwrap();
        }
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        assert_eq!(left_behind(&nodes).await, 0);
    }
}

/// Another takes its place before long.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_dies_when_it_is_told_holds_nobody_up() {
    let nodes = nodes::<5>();
    let (one, other) = pair(&nodes).await;
    let guard = one.lock("wanted").unwrap().acquire().await.unwrap();
    let dead = Claim::new(guard.name().clone(), TTL).waiting();
    let driver = over(&nodes).await;
    assert!(take(&driver, &dead).await.is_none());
    let waiter = other.lock("wanted").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    sleep(Duration::from_secs(1)).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let _guard = waiter.await.unwrap();
    assert!(released.elapsed() <= Duration::from_millis(100), "{:?}", released.elapsed());
}

/// Each that takes a node which the holder does not have gives it back, and wakes the next by that.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_wake_each_other_all_the_time() {
    let nodes = nodes::<5>();
    let driver = over(&nodes).await;
    nodes[..2].iter().for_each(|node| node.set(Mode::Down));
    let held = claim(10 * TTL);
    take(&driver, &held).await.unwrap();
    nodes.iter().for_each(|node| node.set(Mode::Up));
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let locker = Locker::new(over(&nodes).await);
        waiting.push(tokio::spawn(async move {
            let _guard = locker.lock("wanted").unwrap().acquire().await.unwrap();
        }));
    }
    let asks = nodes[4].asks();
    sleep(TTL).await;
    // They would come to as many by polling at intervals of up to 100 ms.
    let asks = nodes[4].asks() - asks;
    assert!(asks < 4 * 250, "{asks} asks in {TTL:?}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Nor does a wait, dropped at any time before the release, or in the midst of what follows from it.
#[tokio::test(start_paused = true)]
async fn a_dropped_wait_leaves_nothing() {
    const RELEASED_AT: usize = 20;
    let nodes = nodes::<5>();
    let (one, other) = pair(&nodes).await;
    let (held, wanted) = (one.lock("dropped").unwrap(), other.lock("dropped").unwrap());
    let mut ended = 0;
    for polls in 0..2 * RELEASED_AT {
        let mut guard = Some(held.acquire().await.unwrap());
        nodes[..3].iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(3))));
        nodes[4].set(Mode::Mute);
        let mut acquiring = Box::pin(wanted.acquire());
        let mut releasing = None;
        for poll in 0..polls {
            if poll == RELEASED_AT {
                releasing = guard.take().map(|guard| tokio::spawn(guard.release()));
            }
            tokio::select! {
                biased;
                guard = &mut acquiring => {
                    guard.unwrap().release().await.unwrap();
                    ended += 1;
                    break;
                }
                () = sleep(Duration::from_micros(500)) => (),
            }
        }
        drop(acquiring);
        nodes.iter().for_each(|node| node.set(Mode::Up));
        match (guard, releasing) {
            (Some(guard), _) => guard.release().await.unwrap(),
            (None, Some(releasing)) => releasing.await.unwrap().unwrap(),
            (None, None) => unreachable!(),
        }
        sleep(Duration::from_secs(120)).await;
        assert_eq!(left_behind(&nodes).await, 0, "after {polls} polls");
    }
    assert!((1..RELEASED_AT - 2).contains(&ended), "{ended} were not dropped in time");
}

/// Dropped after each of its polls, an acquisition leaves nothing on any node.
#[tokio::test(start_paused = true)]
async fn who_has_waited_and_lost_its_hold_listens_nowhere() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    let (waiter, other) = (claim(TTL).waiting(), claim(TTL));
    nodes[2].try_acquire(&other).await.unwrap();
    take(&driver, &waiter).await.unwrap();
    assert_eq!(nodes[2].listeners(), 1);
    nodes[0].forget();
    nodes[1].forget();
    assert_eq!(driver.renew(&waiter).await.unwrap(), Renewal::Lost);
    nodes[2].release(&other).await.unwrap();
    assert!(nodes.iter().all(TestNode::is_idle));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_leave_a_silent_node_in_time_listens_there_no_more() {
    let nodes = nodes::<3>();
    let driver = over(&nodes).await;
    take(&driver, &claim(TTL)).await.unwrap();
    let waiters = [TTL, TTL, TTL / 10].map(|ttl| claim(ttl).waiting());
    for waiter in &waiters {
        assert!(matches!(driver.try_acquire(waiter).await, Ok(Attempt::Taken(_))));
    }
    nodes[2].set(Mode::Hung);
    for waiter in &waiters {
        driver.release(waiter).await.unwrap();
        sleep(TTL / 100).await;
    }
    // The first two are under way there, and the last waits for one of them.
    assert_eq!(nodes[2].listeners(), 1);
    sleep(TTL / 10).await;
    assert_eq!(nodes[2].listeners(), 0);
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
