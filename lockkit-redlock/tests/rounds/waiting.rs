//! Waiting: how a release is heard of, and what is left of who waited.

use std::time::Duration;

use lockkit_core::Locker;
use lockkit_core::driver::{Attempt, Claim, Driver as _, Renewal};
use tokio::time::{Instant, sleep};

use crate::support::{Mode, TestNode, claim, over};
use crate::{TTL, apart, left_behind, nodes, take};

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
            let locker = apart(over(&nodes).await);
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

/// Some nodes tell no claim that only listens, and say so. A release may be heard of by them alone.
#[tokio::test(start_paused = true)]
async fn a_quorum_tells_of_a_release_if_a_majority_of_its_nodes_does() {
    for silent in 0..=5 {
        let nodes = nodes::<5>();
        nodes[..silent].iter().for_each(TestNode::tells_nobody);
        let driver = over(&nodes).await;
        take(&driver, &claim(TTL)).await.unwrap();
        let Ok(Attempt::Taken(taken)) = driver.try_acquire(&claim(TTL).waiting()).await else {
            panic!("two at once");
        };
        assert_eq!(taken.is_unheard(), silent > 2, "{silent} of 5 tell nobody");
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
