use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, ErrorKind, Inspect, Instant, Release, Renewal,
    Turnstile, Vouch,
};
use lockkit_core::{Capabilities, Liveness};
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ballot::A_MOMENT;
use crate::builder::RedlockBuilder;
use crate::electorate::{Electorate, NoVote, Voter};
use crate::lanes::AllLanes;
use crate::pulse::Pass;
use crate::stragglers::Stragglers;
use crate::waiting::Waiters;

pub(crate) const ID: &str = "redlock";

/// What the Redlock driver promises. Its longest lease is the one that it was
/// [told](RedlockBuilder::settings): 60 seconds here. It tells of a release if a majority of its
/// nodes does so to claims that only [listen](lockkit_core::driver::Claim::listens), as nodes on
/// Redis do; each refusal says whether that is so.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .notification()
    .inspection()
    .ttl(Capabilities::MIN_TTL, Duration::from_secs(60));

/// How many claims ask at a time, when many do at once: each has a request under way to every node.
const MOST_ASKS: usize = 16;

/// How long nodes that have been asked something may go on answering once the driver is closed.
const GRACE: Duration = Duration::from_millis(500);

/// Locks that a majority of nodes grants.
///
/// All nodes are asked at once, and the answer is there when a majority has given it: a node that
/// is slow or down holds nobody up. Its later answer is collected by tasks of the driver, which end
/// with [`close`](Driver::close) or when the driver is dropped.
pub struct RedlockDriver {
    pub(crate) quorum: Arc<Quorum>,
    capabilities: Capabilities,
    asks: Turnstile,
    _ends: DropGuard,
}

/// What all requests share.
pub(crate) struct Quorum {
    pub(crate) nodes: Arc<Electorate>,
    pub(crate) lanes: AllLanes,
    pub(crate) waiters: Waiters,
    pub(crate) stragglers: Stragglers,
    pub(crate) over: CancellationToken,
}

impl RedlockDriver {
    /// A driver over nodes that are still to be named.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::default()
    }

    pub(crate) fn new(nodes: Electorate) -> Self {
        let capabilities = CAPABILITIES.ttl(CAPABILITIES.min_ttl, nodes.settings.max_ttl);
        let over = CancellationToken::new();
        let quorum = Arc::new(Quorum {
            nodes: Arc::new(nodes),
            lanes: AllLanes::default(),
            waiters: Waiters::default(),
            stragglers: Stragglers::default(),
            over: over.clone(),
        });
        let asks = Turnstile::new(MOST_ASKS);
        Self { quorum, capabilities, asks, _ends: over.drop_guard() }
    }

    #[cfg(test)]
    pub(crate) async fn over(nodes: &[lockkit_core::memory::MemoryDriver]) -> Self {
        let named = nodes.iter().enumerate();
        let builder = named.fold(Self::builder(), |builder, (at, node)| {
            builder.node(format!("node {at}"), node.clone())
        });
        builder.connect().await.unwrap()
    }

    /// Waiters have to poll.
    pub(crate) fn tells_nothing(&mut self) {
        self.capabilities.notification = false;
    }
}

impl fmt::Debug for RedlockDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockDriver").field("nodes", &self.quorum.nodes).finish_non_exhaustive()
    }
}

#[async_trait]
impl Driver for RedlockDriver {
    fn id(&self) -> &'static str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.asks.pass(claim, || self.quorum.acquire(claim)).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.quorum.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.quorum.release(claim).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.quorum.changed(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.quorum.over.cancel();
        // What a slow node grants only now is still given back.
        self.quorum.stragglers.wait(GRACE).await;
        let drivers = self.quorum.nodes.members.iter().filter_map(|member| member.driver().ok());
        join_all(drivers.map(|driver| async move { driver.close().await })).await;
        // No answer to what hangs can come any more. Not all drivers end such requests.
        self.quorum.stragglers.end().await;
    }
}

/// What every request to a node begins and ends with.
impl Quorum {
    pub(crate) fn is_silent(&self, at: usize, claim: &Claim) -> bool {
        let patience = self.nodes.settings.patience(claim.ttl());
        self.nodes.members[at].pulse.is_silent(claim.clock(), patience)
    }

    pub(crate) fn does_not_answer(&self, at: usize) -> DriverError {
        self.nodes.members[at].pulse.why_silent()
    }

    /// The right to ask a node something, unless it answers nobody.
    pub(crate) async fn pass(&self, at: usize, claim: &Claim) -> Option<Pass> {
        let patience = self.nodes.settings.patience(claim.ttl());
        let pulse = &self.nodes.members[at].pulse;
        let pass = pulse.pass(claim.clock(), patience);
        if pass.is_some() || pulse.has_failed() {
            return pass;
        }
        // It may be this process that stood still. Then the answers are there, to be read.
        Box::pin(a_moment()).await;
        pulse.pass(claim.clock(), patience)
    }

    pub(crate) async fn voter(&self, at: usize, claim: &Claim) -> Result<Voter, NoVote> {
        self.nodes.voter(at, claim.clock(), claim.call_limit()).await
    }

    /// Checks that the answer came from the run of the backend that `voter` stands for.
    pub(crate) async fn confirmed(
        &self,
        at: usize,
        claim: &Claim,
        voter: &Voter,
    ) -> Result<(), DriverError> {
        match self.voter(at, claim).await {
            Ok(now) if now.is(voter) => Ok(()),
            _ => Err(DriverError::new(ErrorKind::Unknown, "it was restarted while it was asked")),
        }
    }
}

/// Lets the runtime look for what has arrived, and those who wait for it take it, one after the
/// other: who reads the connection, and whoever has asked.
async fn a_moment() {
    sleep(A_MOMENT).await;
    for _ in 0..3 {
        yield_now().await;
    }
}

/// Until when a node vouches for a hold, if it was asked at `asked` at the earliest.
pub(crate) fn good_until(vouch: Vouch, asked: Instant, ttl: Duration) -> Instant {
    match vouch {
        Vouch::Lease { since, ttl } => since + ttl,
        _ => asked + ttl,
    }
}
