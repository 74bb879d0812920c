//! Looks from outside.

use std::time::Duration;

use lockkit_core::driver::{Driver as _, ErrorKind, Inspect as _, Renewal};
use tokio::time::sleep;

use crate::support::{Mode, claim, over};
use crate::{TTL, nodes, take};

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

#[tokio::test(start_paused = true)]
async fn a_list_may_take_longer_than_a_look() {
    let nodes = nodes::<3>();
    let (driver, claim) = (over(&nodes).await, claim(6 * TTL));
    take(&driver, &claim).await.unwrap();
    nodes.iter().for_each(|node| node.set(Mode::Slow(TTL)));
    let listed = driver.held(claim.name().namespace()).await.unwrap();
    assert_eq!(listed.len(), 1);
    let error = driver.look(claim.name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

/// At most 50 ms, unless it is set.
#[tokio::test(start_paused = true)]
async fn nodes_that_take_longer_than_they_are_waited_for_are_named() {
    let nodes = nodes::<3>();
    let (driver, claim) = (over(&nodes).await, claim(TTL));
    for (delay, slow) in [(1, 0), (20, 0), (60, 3)] {
        nodes.iter().for_each(|node| node.set(Mode::Slow(Duration::from_millis(delay))));
        let found = driver.diagnose(claim.name().namespace()).await.unwrap();
        let advices = found.iter().filter_map(|found| found.advice());
        assert_eq!(advices.filter(|advice| advice.contains("node_timeout")).count(), slow);
    }
    assert!(driver.try_acquire(&claim).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_examined_is_named() {
    let nodes = nodes::<3>();
    let (driver, claim) = (over(&nodes).await, claim(TTL));
    nodes[1].set(Mode::Denying);
    let found = driver.diagnose(claim.name().namespace()).await.unwrap();
    let is_named = |text: &str| text.contains("node 1") && text.contains("not for you");
    assert!(found.iter().any(|found| is_named(found.finding())), "{found:?}");
}
