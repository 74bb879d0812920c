use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, Grant, Inspect, Instant, Release, Renewal,
    Taken, Vouch,
};
use lockkit_core::{Capabilities, Liveness};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::ballot::{self, A_MOMENT, Settled, Votes, count, reached};
use crate::builder::RedlockBuilder;
use crate::electorate::{Electorate, NoVote, Voter};
use crate::lanes::{AllLanes, Lanes};
use crate::member::causes;
use crate::pulse::Pass;

pub(crate) const ID: &str = "redlock";

/// Between two attempts to release what a node has not let go of.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the Redlock driver promises. Its longest lease is what it was
/// [told](RedlockBuilder::settings): 60 seconds here.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .inspection()
    .ttl(Capabilities::MIN_TTL, Duration::from_secs(60));

/// Locks that a majority of nodes grants.
///
/// All nodes are asked at once, and the answer is there when a majority has given it: a node that
/// is slow or down holds nobody up. What it answers later is collected by tasks of the driver,
/// which end with [`close`](Driver::close) or when the driver is dropped.
pub struct RedlockDriver {
    pub(crate) quorum: Quorum,
    _ends: DropGuard,
}

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Quorum {
    pub(crate) nodes: Arc<Electorate>,
    lanes: Arc<AllLanes>,
    pub(crate) stragglers: TaskTracker,
    pub(crate) over: CancellationToken,
}

impl RedlockDriver {
    /// A driver over nodes that are still to be named.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::default()
    }

    pub(crate) fn new(nodes: Electorate) -> Self {
        let over = CancellationToken::new();
        let quorum = Quorum {
            nodes: Arc::new(nodes),
            lanes: Arc::default(),
            stragglers: TaskTracker::new(),
            over: over.clone(),
        };
        Self { quorum, _ends: over.drop_guard() }
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
        CAPABILITIES.ttl(CAPABILITIES.min_ttl, self.quorum.nodes.settings.max_ttl)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.quorum.acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.quorum.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.quorum.release(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn close(&self) {
        self.quorum.over.cancel();
        for member in &self.quorum.nodes.members {
            if let Ok(driver) = member.driver() {
                driver.close().await;
            }
        }
        self.quorum.stragglers.close();
        self.quorum.stragglers.wait().await;
    }
}

/// What a node answers to a release.
type Cleared = Result<Release, DriverError>;

/// One time that all nodes are asked.
struct Round {
    asked: Instant,
    is_given_up: AtomicBool,
}

/// What a node answers to an ask.
enum Vote {
    /// Until when the hold lasts there.
    Granted(Instant),
    Taken(Option<Duration>),
    Failed(DriverError),
}

/// What a node answers to a renewal.
enum Kept {
    /// Until when the hold lasts there.
    Held(Instant),
    Lost,
    Failed(DriverError),
}

impl Quorum {
    async fn acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let (nodes, quorum) = (self.nodes.len(), self.nodes.quorum());
        let claim = claim.clone().not_waiting();
        let lanes = self.lanes.of(claim.owner(), nodes);
        let patience = self.nodes.settings.patience(claim.ttl());
        let asked = claim.now();
        let is_granted = |vote: &Vote| matches!(vote, Vote::Granted(_));
        let is_taken = |vote: &Vote| matches!(vote, Vote::Taken(_));
        let is_settled = |votes: &Votes<Vote>| {
            let (granted, taken) = (count(votes, is_granted), count(votes, is_taken));
            let open = votes.iter().filter(|vote| vote.is_none()).count();
            // There is a majority, there can be none, or there can be no answer.
            let is_clear = granted >= quorum
                || granted + open < quorum && granted + taken >= quorum
                || granted + taken + open < quorum;
            match is_clear {
                true => Settled::Yes,
                // Somebody else is at it, and what we have is in the way meanwhile: a slow node is
                // not waited for. Or somebody has released it, which the nodes that refuse are the
                // last to hear: then the others decide.
                false if taken > 0 && granted + taken >= quorum => {
                    let delay = patience / 8;
                    let is_prompt = |(at, vote): &(usize, &Option<_>)| {
                        vote.is_none() && self.nodes.members[*at].pulse.is_prompt(delay)
                    };
                    let prompt = votes.iter().enumerate().filter(is_prompt).count();
                    Settled::Nearly(if granted + prompt >= quorum { delay } else { A_MOMENT })
                }
                false => Settled::No,
            }
        };
        let round = Arc::new(Round { asked, is_given_up: AtomicBool::new(false) });
        let ask = |at| self.clone().ask(at, claim.clone(), lanes.clone(), round.clone());
        let asks = (0..nodes).map(ask).collect();
        let votes = ballot::hold(asks, patience, &self.stragglers, is_settled).await;

        let lasts = reached(votes.iter().flatten().filter_map(Vote::good_until), quorum);
        let answered = claim.now();
        // What is left of the lease must be worth having.
        if let Some(lasts) = lasts.filter(|lasts| *lasts > answered + claim.ttl() / 10) {
            let ttl = lasts.saturating_duration_since(asked);
            return Ok(Attempt::Granted(Grant::new().vouch(Vouch::Lease { since: asked, ttl })));
        }

        round.is_given_up.store(true, Ordering::Release);
        let all_undone = self.undo(&claim, &lanes, &votes, patience).await;
        let (granted, taken) = (count(&votes, is_granted), count(&votes, is_taken));
        if taken > 0 && granted + taken >= quorum {
            // Where several share the nodes they are free again as soon as the others undo it.
            let free_in = if granted == 0 { free_in(&votes, quorum) } else { None };
            let taken = Taken::new();
            return Ok(Attempt::Taken(free_in.into_iter().fold(taken, Taken::free_in)));
        }
        let failures = votes.into_iter().map(|vote| match vote {
            None => Some(silent()),
            Some(Vote::Failed(error)) => Some(error),
            Some(Vote::Granted(_) | Vote::Taken(_)) => None,
        });
        Err(self.no_majority(granted + taken, failures, all_undone))
    }

    /// Asks a node for its vote, unless it has not answered an earlier request by the time at which
    /// the round is given up.
    fn ask(
        self,
        at: usize,
        claim: Claim,
        lanes: Arc<Lanes>,
        round: Arc<Round>,
    ) -> BoxFuture<'static, Vote> {
        Box::pin(async move {
            let _lane = match lanes.try_enter(at) {
                Some(lane) => lane,
                // What is under way there may take as long as the lease.
                None if self.is_silent(at, &claim) => return Vote::Failed(does_not_answer()),
                None => lanes.enter(at).await,
            };
            if round.is_given_up.load(Ordering::Acquire) {
                return Vote::Failed(unreachable("it was not asked in time"));
            }
            let Some(pass) = self.pass(at, &claim) else { return Vote::Failed(does_not_answer()) };
            let answer = self.take(at, &claim).await;
            let failure = match &answer {
                Err(NoVote::Failed(error)) => Some(error),
                _ => None,
            };
            pass.ended(claim.now(), failure);
            match answer {
                Ok(Attempt::Granted(grant)) => {
                    Vote::Granted(good_until(grant.vouched(), round.asked, claim.ttl()))
                }
                Ok(Attempt::Taken(taken)) => Vote::Taken(taken.remaining()),
                Ok(_) => Vote::Failed(strange()),
                Err(reason) => Vote::Failed(reason.into()),
            }
        })
    }

    /// The answer of a node that may vote, and was not restarted meanwhile.
    async fn take(&self, at: usize, claim: &Claim) -> Result<Attempt, NoVote> {
        let voter = self.voter(at, claim).await?;
        let attempt = voter.driver.try_acquire(claim).await.map_err(NoVote::Failed)?;
        if let Attempt::Granted(_) = attempt {
            self.confirmed(at, claim, &voter).await.map_err(NoVote::Barred)?;
        }
        Ok(attempt)
    }

    fn is_silent(&self, at: usize, claim: &Claim) -> bool {
        let patience = self.nodes.settings.patience(claim.ttl());
        self.nodes.members[at].pulse.is_silent(claim.now(), patience)
    }

    /// The right to ask a node something, unless it answers nobody.
    fn pass(&self, at: usize, claim: &Claim) -> Option<Pass> {
        let patience = self.nodes.settings.patience(claim.ttl());
        self.nodes.members[at].pulse.pass(claim.clock(), patience)
    }

    async fn voter(&self, at: usize, claim: &Claim) -> Result<Voter, NoVote> {
        self.nodes.voter(at, claim.clock(), claim.call_limit()).await
    }

    /// Whether it was that run of the backend that has answered.
    async fn confirmed(&self, at: usize, claim: &Claim, voter: &Voter) -> Result<(), DriverError> {
        match self.voter(at, claim).await {
            Ok(now) if now.is(voter) => Ok(()),
            _ => Err(DriverError::new(ErrorKind::Unknown, "it was restarted while it was asked")),
        }
    }

    /// Gives back what a round without a majority has got, or may yet get; whether that is all gone.
    ///
    /// Waits for the nodes that have answered, and not for those that have not.
    async fn undo(
        &self,
        claim: &Claim,
        lanes: &Arc<Lanes>,
        votes: &Votes<Vote>,
        patience: Duration,
    ) -> bool {
        let may_have = |vote: &Option<Vote>| match vote {
            None | Some(Vote::Granted(_)) => true,
            Some(Vote::Failed(error)) => error.kind() == ErrorKind::Unknown,
            // A claim that does not wait leaves nothing where it was refused.
            Some(Vote::Taken(_)) => false,
        };
        let (mut clearing, mut has_answered) = (Vec::new(), Vec::new());
        for (at, vote) in votes.iter().enumerate().filter(|(_, vote)| may_have(vote)) {
            clearing.push(self.clone().clear(at, claim.clone(), lanes.clone()));
            has_answered.push(vote.is_some());
        }
        let is_settled = |cleared: &Votes<Cleared>| {
            cleared.iter().zip(&has_answered).all(|(cleared, waits)| cleared.is_some() || !waits)
        };
        let cleared = ballot::hold(clearing, patience, &self.stragglers, is_settled).await;
        cleared.iter().all(|outcome| matches!(outcome, Some(Ok(_))))
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let (nodes, quorum) = (self.nodes.len(), self.nodes.quorum());
        let claim = claim.clone().not_waiting();
        let lanes = self.lanes.of(claim.owner(), nodes);
        let asked = claim.now();
        let is_held = |kept: &Kept| matches!(kept, Kept::Held(_));
        let is_lost = |kept: &Kept| matches!(kept, Kept::Lost);
        let is_settled = |votes: &Votes<Kept>| {
            count(votes, is_held) >= quorum || count(votes, is_lost) > nodes - quorum
        };
        let keep = |at| self.clone().keep(at, claim.clone(), lanes.clone(), asked);
        let renewals = (0..nodes).map(keep).collect();
        let limit = claim.call_limit();
        let votes = ballot::hold(renewals, limit, &self.stragglers, is_settled).await;
        if let Some(lasts) = reached(votes.iter().flatten().filter_map(Kept::good_until), quorum) {
            // Where it was lost it is taken again, beside: that is worth a vote at the next renewal,
            // not at this one, for which it was not there all the time.
            let lost =
                votes.iter().enumerate().filter(|(_, vote)| vote.as_ref().is_some_and(is_lost));
            let retake = |(at, _)| self.clone().retake(at, claim.clone(), lanes.clone());
            let retaking = lost.map(retake).collect();
            ballot::hold(retaking, Duration::ZERO, &self.stragglers, |_| true).await;
            let ttl = lasts.saturating_duration_since(asked);
            return Ok(Renewal::Held(Vouch::Lease { since: asked, ttl }));
        }
        if count(&votes, is_lost) > nodes - quorum {
            // Nobody releases a lost hold; a minority may still have it.
            let clear = |at| self.clone().clear(at, claim.clone(), lanes.clone());
            let clearing = (0..nodes).map(clear).collect();
            ballot::hold(clearing, Duration::ZERO, &self.stragglers, |_| true).await;
            return Ok(Renewal::Lost);
        }
        let answered = count(&votes, |kept| !matches!(kept, Kept::Failed(_)));
        let failures = votes.into_iter().map(|vote| match vote {
            None => Some(silent()),
            Some(Kept::Failed(error)) => Some(error),
            Some(Kept::Held(_) | Kept::Lost) => None,
        });
        Err(self.no_majority(answered, failures, false))
    }

    /// Renews at a node. One that may not vote is asked as well: that it has lost the hold counts.
    fn keep(
        self,
        at: usize,
        claim: Claim,
        lanes: Arc<Lanes>,
        asked: Instant,
    ) -> BoxFuture<'static, Kept> {
        Box::pin(async move {
            let _lane = lanes.enter(at).await;
            let driver = match self.nodes.members[at].driver() {
                Ok(driver) => driver,
                Err(reason) => return Kept::Failed(unreachable(&*reason)),
            };
            let Some(pass) = self.pass(at, &claim) else { return Kept::Failed(does_not_answer()) };
            let voter = self.voter(at, &claim).await;
            let answer = driver.renew(&claim).await;
            pass.answered(claim.now(), &answer);
            let vouch = match answer {
                Ok(Renewal::Held(vouch)) => vouch,
                Ok(Renewal::Lost) => return Kept::Lost,
                Ok(_) => return Kept::Failed(strange()),
                Err(error) => return Kept::Failed(error),
            };
            let confirmed = match &voter {
                Ok(voter) => self.confirmed(at, &claim, voter).await,
                Err(_) => voter.map(|_| ()).map_err(DriverError::from),
            };
            match confirmed {
                Ok(()) => Kept::Held(good_until(vouch, asked, claim.ttl())),
                Err(error) => Kept::Failed(error),
            }
        })
    }

    /// Takes the lock again at a node that has lost it.
    fn retake(self, at: usize, claim: Claim, lanes: Arc<Lanes>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _lane = lanes.enter(at).await;
            let Some(pass) = self.pass(at, &claim) else { return };
            if let Ok(voter) = self.voter(at, &claim).await {
                let answer = voter.driver.try_acquire(&claim).await;
                pass.answered(claim.now(), &answer);
                let node = &self.nodes.members[at].name;
                tracing::debug!(%node, lock = %claim.name(), ?answer, "was lost there, taken again");
            }
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let (nodes, quorum) = (self.nodes.len(), self.nodes.quorum());
        let claim = claim.clone().not_waiting();
        let lanes = self.lanes.of(claim.owner(), nodes);
        let freed =
            |votes: &Votes<Cleared>| count(votes, |vote| matches!(vote, Ok(Release::Freed)));
        let not_held =
            |votes: &Votes<Cleared>| count(votes, |vote| matches!(vote, Ok(Release::NotHeld)));
        let is_settled = |votes: &Votes<Cleared>| {
            if freed(votes) < quorum && not_held(votes) <= nodes - quorum {
                return Settled::No;
            }
            let is_awaited =
                |(at, vote): (usize, &Option<_>)| vote.is_none() && !self.is_silent(at, &claim);
            match votes.iter().enumerate().any(is_awaited) {
                true => Settled::Nearly(A_MOMENT),
                false => Settled::Yes,
            }
        };
        let clear = |at| self.clone().clear(at, claim.clone(), lanes.clone());
        let clearing = (0..nodes).map(clear).collect();
        let limit = claim.call_limit();
        // Else whoever comes next may find too few nodes free.
        let votes = ballot::hold(clearing, limit, &self.stragglers, is_settled).await;
        let (freed, not_held) = (freed(&votes), not_held(&votes));
        if not_held > nodes - quorum {
            return Ok(Release::NotHeld);
        }
        if freed + not_held >= quorum {
            return Ok(Release::Freed);
        }
        let failures = votes.into_iter().map(|vote| match vote {
            None => Some(silent()),
            Some(Err(error)) => Some(error),
            Some(Ok(_)) => None,
        });
        Err(self.no_majority(freed + not_held, failures, false))
    }

    /// Removes the claim from a node, once what is under way there was answered: with as many
    /// requests as it takes for as long as a hold can last there.
    fn clear(self, at: usize, claim: Claim, lanes: Arc<Lanes>) -> BoxFuture<'static, Cleared> {
        Box::pin(async move {
            let _lane = lanes.enter(at).await;
            let Ok(driver) = self.nodes.members[at].driver() else {
                return Ok(Release::NotHeld);
            };
            let gone_by_itself = claim.now() + claim.ttl();
            let patience = self.nodes.settings.patience(claim.ttl());
            loop {
                let pass = tokio::select! {
                    biased;
                    pass = self.nodes.members[at].pulse.passed(claim.clock(), patience) => pass,
                    () = self.over.cancelled() => return Err(does_not_answer()),
                    () = claim.clock().sleep_until(gone_by_itself) => return Err(does_not_answer()),
                };
                let answer = driver.release(&claim).await;
                pass.answered(claim.now(), &answer);
                let error = match answer {
                    Ok(release) => return Ok(release),
                    Err(error) => error,
                };
                let node = &self.nodes.members[at].name;
                tracing::debug!(%node, lock = %claim.name(), %error, "not released there yet");
                let pause = (claim.ttl() / 20).min(LONGEST_PAUSE);
                let pause = claim.clock().sleep_until(claim.now() + pause);
                tokio::select! {
                    () = self.over.cancelled() => return Err(error),
                    () = pause => if claim.now() >= gone_by_itself { return Err(error) },
                }
            }
        })
    }

    /// Why there is no answer. `failures` has one entry a node.
    pub(crate) fn no_majority(
        &self,
        answered: usize,
        failures: impl IntoIterator<Item = Option<DriverError>>,
        nothing_is_left: bool,
    ) -> DriverError {
        let failures: Vec<_> = failures
            .into_iter()
            .zip(&self.nodes.members)
            .filter_map(|(failure, member)| Some((&*member.name, failure?)))
            .collect();
        let kinds: Vec<_> = failures.iter().map(|(_, error)| error.kind()).collect();
        let is_lasting = |kind: &ErrorKind| !kind.is_transient();
        let blocks = |kind: &ErrorKind| {
            kinds.iter().filter(|other| *other == kind).count()
                > self.nodes.len() - self.nodes.quorum()
        };
        let kind = match kinds.iter().find(|kind| is_lasting(kind) && blocks(kind)) {
            Some(lasting) => *lasting,
            None if nothing_is_left => ErrorKind::Unreachable,
            None if kinds.contains(&ErrorKind::Unknown) => ErrorKind::Unknown,
            None => ErrorKind::Unreachable,
        };
        let reasons = failures
            .into_iter()
            .map(|(name, error)| format!("{name}: {}", causes(&*error.into_source())))
            .collect();
        DriverError::new(kind, NoMajority { answered, needed: self.nodes.quorum(), reasons })
    }
}

impl Vote {
    fn good_until(&self) -> Option<Instant> {
        match self {
            Self::Granted(lasts) => Some(*lasts),
            _ => None,
        }
    }
}

impl Kept {
    fn good_until(&self) -> Option<Instant> {
        match self {
            Self::Held(lasts) => Some(*lasts),
            _ => None,
        }
    }
}

/// Until when a node vouches, that was asked at `asked` at the earliest.
fn good_until(vouch: Vouch, asked: Instant, ttl: Duration) -> Instant {
    match vouch {
        Vouch::Lease { since, ttl } => since + ttl,
        _ => asked + ttl,
    }
}

/// When so many nodes will be free that there can be a majority.
fn free_in(votes: &Votes<Vote>, quorum: usize) -> Option<Duration> {
    let mut free: Vec<Duration> = votes
        .iter()
        .flatten()
        .filter_map(|vote| match vote {
            Vote::Taken(free_in) => *free_in,
            _ => None,
        })
        .collect();
    free.sort_unstable();
    free.get(quorum - 1).copied()
}

fn unreachable(reason: impl Into<String>) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, reason.into())
}

fn does_not_answer() -> DriverError {
    unreachable("it answers nobody, and is being asked")
}

pub(crate) fn silent() -> DriverError {
    DriverError::new(ErrorKind::Unknown, "no answer in time")
}

fn strange() -> DriverError {
    DriverError::new(ErrorKind::Unsupported, "an answer that a quorum does not understand")
}

/// Too few nodes have answered.
#[derive(Debug, thiserror::Error)]
#[error("{answered} nodes have answered, {needed} are needed ({})", reasons.join("; "))]
pub(crate) struct NoMajority {
    answered: usize,
    needed: usize,
    reasons: Vec<String>,
}
