//! What the memory driver promises beyond the conformance suite.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver as _};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{FencingToken, LockName, Namespace};

async fn token_of_a_grant() -> Option<FencingToken> {
    let name = LockName::new(&Namespace::default(), "a").unwrap();
    let claim = Claim::new(name, Duration::from_secs(30));
    // Nobody else has these locks, so they go with it.
    let driver = MemoryDriver::shared("comes back");
    match driver.try_acquire(&claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token(),
        taken => panic!("{taken:?}"),
    }
}

/// What remembers the highest token may live longer than who had the locks.
#[tokio::test]
async fn tokens_rise_also_where_locks_were_given_up_and_come_back() {
    let first = token_of_a_grant().await;
    assert!(token_of_a_grant().await > first);
}
