//! The quorum over nodes in memory that go down, hang and forget, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asking;
mod electorate;
mod inspect;
mod keeping;
mod support;
mod waiting;

use std::time::Duration;

use lockkit_core::Locker;
use lockkit_core::driver::{Attempt, Claim, Clock, Driver as _, Vouch};
use lockkit_redlock::RedlockDriver;
use tokio::time::sleep;

use crate::support::TestNode;

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

/// A locker whose end wakes nobody in another test. The clock of this machine would: from another
/// thread, so that the virtual time there goes on before they have come to run.
fn apart(driver: RedlockDriver) -> Locker {
    Locker::builder(driver).clock(Clock::simulated()).build().unwrap()
}

/// What nodes still have, once everything that was under way has ended.
async fn left_behind(nodes: &[TestNode]) -> usize {
    sleep(Duration::from_millis(1)).await;
    nodes.iter().filter(|node| !node.is_idle()).count()
}
