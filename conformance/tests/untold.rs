//! A sound driver that tells no holder of a loss fails no check, however long its leases are.

use std::future::{pending, ready};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Outcome, Suite};
use lockkit_core::Capabilities;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, Inspect, Release, Renewal,
};
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};

/// Leaves it to the next renewal to find out that a hold is gone.
#[derive(Clone, Debug)]
struct Untold(MemoryDriver);

#[async_trait]
impl Driver for Untold {
    fn id(&self) -> &'static str {
        "untold"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.0.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.0.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.0.release(claim).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        match self.0.changed(claim).await {
            Change::Lost => pending().await,
            change => change,
        }
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        self.0.inspect()
    }
}

#[test]
fn a_loss_that_a_renewal_finds_is_no_fault() {
    let untold = Untold(MemoryDriver::new());
    let suite = Suite::new("untold", CAPABILITIES)
        .connect(move || ready(Ok(untold.clone())))
        .virtual_time()
        .ttl(Duration::from_secs(90));
    let failed: Vec<_> = (Suite::checks().iter())
        .map(|check| (check.name(), suite.run(check)))
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
