//! A sound backend that counts in whole units, each of them as long as the lease that the
//! checks ask for, fails no check.

use std::future::ready;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Outcome, Suite};
use lockkit_core::driver::{
    Attempt, Change, Claim, Clock, Driver, DriverError, Inspect, Instant, OwnerId, Release, Renewal,
};
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};
use lockkit_core::{Capabilities, Diagnosis, Holder, LockName, LockStatus, Namespace};

const UNIT: Duration = Duration::from_secs(1);

/// Leases end with a unit, and times are told in units.
#[derive(Clone, Debug)]
struct Coarse {
    memory: MemoryDriver,
    begun: Instant,
    /// How much of a unit was over by then.
    over: Duration,
}

impl Coarse {
    fn now(&self) -> Duration {
        self.over + Clock::system().now().saturating_duration_since(self.begun)
    }

    /// Asks for as much more as there is until the next unit begins.
    fn rounded_up(&self, claim: &Claim) -> Claim {
        let end = self.now() + claim.ttl();
        claim.clone().with_ttl(claim.ttl() + (whole(end) + UNIT).saturating_sub(end))
    }

    /// Between two moments of which only the units are known.
    fn told(&self, status: LockStatus) -> LockStatus {
        let Some(holder) = status.holder() else { return status };
        let (now, mut told) = (self.now(), holder.clone());
        if let Some(held_for) = holder.held_for() {
            told = told.with_held_for(whole(now) - whole(now.saturating_sub(held_for)));
        }
        if let Some(remaining) = holder.remaining() {
            told = told.with_remaining(self.told_of(remaining));
        }
        status.clone().held_by(told)
    }

    /// How long that is, by the units in which it begins and ends.
    fn told_of(&self, remaining: Duration) -> Duration {
        let now = self.now();
        whole(now + remaining) - whole(now)
    }
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() / UNIT.as_secs() * UNIT.as_secs())
}

#[async_trait]
impl Driver for Coarse {
    fn id(&self) -> &'static str {
        "coarse"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        Ok(match self.memory.try_acquire(&self.rounded_up(claim)).await? {
            Attempt::Taken(taken) => Attempt::Taken(match taken.remaining() {
                Some(remaining) => taken.free_in(self.told_of(remaining)),
                None => taken,
            }),
            answer => answer,
        })
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.memory.renew(&self.rounded_up(claim)).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.memory.release(claim).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.memory.changed(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for Coarse {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        Ok(self.told(self.memory.look(name).await?))
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let held = self.memory.held(namespace).await?;
        Ok(held.into_iter().map(|status| self.told(status)).collect())
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        self.memory.break_hold(name, owner).await
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        self.memory.diagnose(namespace).await
    }
}

#[test]
fn a_coarse_unit_is_no_fault() {
    for over in [0, 3, 6].map(|tenths| UNIT * tenths / 10) {
        let (memory, begun) = (MemoryDriver::new(), Clock::system().now());
        let coarse = Coarse { memory, begun, over };
        let suite = Suite::new("coarse", CAPABILITIES)
            .connect(move || ready(Ok(coarse.clone())))
            .virtual_time()
            .ttl(UNIT + over);
        for check in Suite::checks() {
            let outcome = suite.run(check);
            assert!(!matches!(outcome, Outcome::Failed(_)), "{}: {outcome:?}", check.name());
        }
    }
}
