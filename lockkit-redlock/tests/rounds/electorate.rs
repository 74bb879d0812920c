//! Who may vote: nodes that forget, that are one, and that come late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::driver::{Driver as _, DriverError, ErrorKind, Renewal};
use lockkit_redlock::{RedlockDriver, Settings};
use tokio::time::sleep;

use crate::support::{Mode, TestNode, claim, nobody_there, over, settings};
use crate::{TTL, left_behind, nodes, take};

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

/// As when somebody has changed how a server writes to its disk.
#[tokio::test(start_paused = true)]
async fn a_node_whose_run_may_have_forgotten_sits_out_whatever_it_said_before() {
    let nodes = nodes::<3>();
    nodes.iter().for_each(TestNode::is_durable);
    let driver = over(&nodes).await;
    let claim = claim(TTL);
    nodes[..2].iter().for_each(TestNode::is_durable_no_more);
    take(&driver, &claim).await.unwrap();
    driver.release(&claim).await.unwrap();
    nodes[..2].iter().for_each(TestNode::restart_durable);
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
}

/// One alone could do without a vote, and nobody would hear of it.
#[tokio::test(start_paused = true)]
async fn a_node_that_may_never_vote_is_named() {
    let nodes = nodes::<5>();
    // These may vote later.
    nodes[3].restart_empty();
    nodes[4].tells_no_run(ErrorKind::Unreachable);
    settings(&nodes, "").await.unwrap();
    nodes[2].tells_no_run(ErrorKind::Denied);
    let error = settings(&nodes, "").await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    assert!(format!("{error:?}").contains("node node 2: not for you"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_a_little_later_than_most_answer_is_named() {
    let nodes = nodes::<2>();
    let refuse = || async {
        sleep(Duration::from_millis(200)).await;
        Err::<TestNode, _>(Error::connecting("test", DriverError::new(ErrorKind::Denied, "no")))
    };
    let driver = RedlockDriver::builder()
        .node("one", nodes[0].clone())
        .node("two", nodes[1].clone())
        .node_at("three", refuse);
    let error = driver.connect().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    assert!(format!("{error:?}").contains("node three: test could not connect"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn settings_out_of_bounds_are_refused_in_code_as_in_a_url() {
    let (long, none) = (Duration::from_secs(25 * 3600), Duration::ZERO);
    for (settings, setting) in [
        (Settings::default().max_ttl(long), "max_ttl"),
        (Settings::default().node_timeout(none), "node_timeout"),
    ] {
        let driver = RedlockDriver::builder().settings(settings);
        let named = ["one", "two", "three"].into_iter().zip(nodes::<3>());
        let driver = named.fold(driver, |driver, (name, node)| driver.node(name, node));
        let error = driver.connect().await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().starts_with(&format!("{setting}: must be")), "{error}");
    }
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
                    0..3 => Err(nobody_there()),
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
    let connect = || async { Err::<TestNode, _>(nobody_there()) };
    let nodes = ["one", "two", "three"];
    let driver =
        nodes.iter().fold(RedlockDriver::builder(), |driver, name| driver.node_at(*name, connect));
    let error = driver.connect().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    let text = format!("{error:?}");
    assert!(nodes.iter().all(|name| text.contains(name)), "{text}");
}
