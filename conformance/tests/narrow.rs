//! A sound driver that keeps only leases of about one length fails no check.

use std::future::ready;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Outcome, Suite};
use lockkit_core::Capabilities;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Inspect, Release, Renewal,
};
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};

/// Refuses leases that it has not declared.
#[derive(Clone, Debug)]
struct Narrow {
    memory: MemoryDriver,
    capabilities: Capabilities,
}

impl Narrow {
    fn can(&self, claim: &Claim) -> Result<(), DriverError> {
        let Capabilities { min_ttl, max_ttl, .. } = self.capabilities;
        match (min_ttl..=max_ttl).contains(&claim.ttl()) {
            true => Ok(()),
            false => Err(DriverError::new(ErrorKind::Unsupported, "too short or too long")),
        }
    }
}

#[async_trait]
impl Driver for Narrow {
    fn id(&self) -> &'static str {
        "narrow"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.can(claim)?;
        self.memory.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.can(claim)?;
        self.memory.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.memory.release(claim).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.memory.changed(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        self.memory.inspect()
    }
}

#[test]
fn short_leases_are_no_fault() {
    for (shortest, longest) in [(1, 40), (10, 40), (20, 40), (30, 30), (1, 2)] {
        let bounds = [shortest, longest].map(Duration::from_secs);
        let capabilities = CAPABILITIES.ttl(bounds[0], bounds[1]);
        let narrow = Narrow { memory: MemoryDriver::new(), capabilities };
        let suite = Suite::new("narrow", capabilities)
            .connect(move || ready(Ok(narrow.clone())))
            .virtual_time();
        // Where one lease can be much longer than another, nothing is left out for that.
        let may_lack = longest < 4 * shortest;
        let is_wrong = |outcome: &Outcome| match outcome {
            Outcome::Failed(_) => true,
            Outcome::Ignored(reason) => reason.contains("the longest lease") && !may_lack,
            _ => false,
        };
        let wrong: Vec<_> = (Suite::checks().iter())
            .map(|check| (check.name(), suite.run(check)))
            .filter(|(_, outcome)| is_wrong(outcome))
            .collect();
        assert!(wrong.is_empty(), "leases of {bounds:?}: {wrong:#?}");
    }
}
