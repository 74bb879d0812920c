//! A round of asks: a majority grants, or what was granted is given back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{Attempt, Claim, DriverError, ErrorKind, Grant, Instant, Taken, Vouch};
use tokio::sync::SetOnce;

use crate::ballot::{self, A_MOMENT, Late, Settled, Votes, count, reached};
use crate::clearing::Cleared;
use crate::driver::{Quorum, good_until};
use crate::electorate::NoVote;
use crate::failure::{Left, silent, strange, unreachable};
use crate::lanes::{Lane, Lanes};
use crate::waiting::{self, Waiter};

/// One round, in which all nodes are asked.
struct Round {
    claim: Claim,
    lanes: Arc<Lanes>,
    /// Only for a claim that waits.
    waiter: Option<Arc<Waiter>>,
    asked: Instant,
    given_up: SetOnce<()>,
}

/// What a node answers to an ask.
enum Vote {
    /// Until when the hold lasts there.
    Granted(Instant),
    Taken(Taken),
    Failed(DriverError),
}

/// A vote, and the lane on which it came: if the vote is not wanted after all, nothing comes
/// between it and its undoing.
struct Cast {
    vote: Vote,
    lane: Option<Lane>,
}

impl Quorum {
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim) -> Result<Attempt, DriverError> {
        let (nodes, quorum, owner) = (self.nodes.len(), self.nodes.quorum(), claim.owner());
        let patience = self.nodes.settings.patience(claim.ttl());
        let waiter = claim
            .waits()
            .then(|| self.waiters.find(owner).unwrap_or_else(|| Arc::new(Waiter::new(nodes))));
        if let Some(waiter) = &waiter {
            waiter.asks();
        }
        let round = Arc::new(Round {
            claim: claim.clone(),
            lanes: self.lanes.of(owner, nodes),
            waiter,
            asked: claim.now(),
            given_up: SetOnce::new(),
        });
        let asks = (0..nodes).map(|at| {
            let (this, round) = (Arc::clone(self), Arc::clone(&round));
            Box::pin(async move { this.ask(at, &round).await }) as BoxFuture<'static, Cast>
        });
        let is_settled = |votes: &Votes<Cast>| self.is_settled(votes, patience);
        let (mut votes, late) = ballot::open(asks.collect(), patience, is_settled).await;

        let lasts = reached(votes.iter().flatten().filter_map(Cast::good_until), quorum);
        let answered = claim.now();
        // What is left of the lease must be worth having.
        if let Some(lasts) = lasts.filter(|lasts| *lasts > answered + claim.ttl() / 10) {
            late.go_on_unheard(&self.stragglers);
            if claim.waits() {
                self.waiters.leave(owner);
            }
            let ttl = lasts.saturating_duration_since(round.asked);
            let vouch = Vouch::Lease { since: round.asked, ttl };
            return Ok(Attempt::Granted(Grant::new().vouch(vouch)));
        }

        // Nobody else does.
        _ = round.given_up.set(());
        let (granted, taken) = (count(&votes, Cast::is_granted), count(&votes, Cast::is_taken));
        let is_refused = taken > 0 && granted + taken >= quorum;
        let all_undone = self.undo(&round, &mut votes, late, is_refused, patience).await;
        if is_refused {
            return Ok(Attempt::Taken(self.refused(&round, &votes, granted)));
        }
        if claim.waits() {
            self.waiters.leave(owner);
        }
        if lasts.is_some() {
            let kind = if all_undone { ErrorKind::Unreachable } else { ErrorKind::Unknown };
            let reason = "what a majority had granted was all but over by then";
            return Err(DriverError::new(kind, reason));
        }
        let failures = votes.into_iter().map(|cast| match cast.map(|cast| cast.vote) {
            None => Some(silent()),
            Some(Vote::Failed(error)) => Some(error),
            Some(Vote::Granted(_) | Vote::Taken(_)) => None,
        });
        let left = if all_undone { Left::Nothing } else { Left::Something };
        Err(self.no_majority(granted + taken, failures, left))
    }

    fn is_settled(&self, votes: &Votes<Cast>, patience: Duration) -> Settled {
        let quorum = self.nodes.quorum();
        let (granted, taken) = (count(votes, Cast::is_granted), count(votes, Cast::is_taken));
        let open = votes.iter().filter(|vote| vote.is_none()).count();
        // There is a majority, there can be none, or there can be no answer.
        let is_clear = granted >= quorum
            || granted + open < quorum && granted + taken >= quorum
            || granted + taken + open < quorum;
        match is_clear {
            true => Settled::Yes,
            // Somebody else is trying, and what we have is in the way meanwhile: a slow node is not
            // waited for. Or somebody has released the lock, and the nodes that refuse are the last
            // to hear of it: then the others decide.
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
    }

    /// What a claim learns whose round came to nothing because others have the lock.
    fn refused(&self, round: &Round, votes: &Votes<Cast>, granted: usize) -> Taken {
        let refusals = || {
            votes.iter().flatten().filter_map(|cast| match &cast.vote {
                Vote::Taken(taken) => Some(taken),
                _ => None,
            })
        };
        // Where several claims share the nodes, these are free again as soon as the others undo
        // their rounds.
        let free_in = match granted {
            0 => free_in(refusals(), self.nodes.quorum()),
            _ => None,
        };
        let taken = free_in.into_iter().fold(Taken::new(), Taken::free_in);
        let Some(waiter) = &round.waiter else { return taken };
        let took = round.claim.now().saturating_duration_since(round.asked);
        let try_again = waiter.is_refused(granted, took);
        let waiting = self.waiters.join(round.claim.owner(), waiter);
        let telling = refusals().filter(|refusal| refusal.is_heard()).count();
        match try_again {
            Some(pause) => taken.ask_within(pause),
            None if telling >= self.nodes.quorum() => {
                taken.ask_within(waiting::ask_within(refusals(), waiting))
            }
            // A release may go unheard.
            None => taken.unheard(),
        }
    }

    /// Asks a node for its vote, unless the node has not answered an earlier request by the time
    /// the round is given up.
    async fn ask(&self, at: usize, round: &Round) -> Cast {
        let not_asked = |error| Cast { vote: Vote::Failed(error), lane: None };
        let claim = &round.claim;
        let lane = match round.lanes.try_enter(at) {
            Some(lane) => Some(lane),
            // What is under way there may take as long as the lease.
            None if self.is_silent(at, claim) => return not_asked(self.does_not_answer(at)),
            None => Box::pin(round.enter(at)).await,
        };
        let Some(lane) = lane.filter(|_| !round.given_up.initialized()) else {
            return not_asked(unreachable("it was not asked in time"));
        };
        if let Some(left) = lane.doubtful_for(claim.clock()) {
            if self.is_silent(at, claim) {
                return not_asked(self.does_not_answer(at));
            }
            // What the node granted could be undone.
            return Cast { vote: Vote::Taken(Taken::new().free_in(left)), lane: None };
        }
        let pass = self.pass(at, claim).await.filter(|_| !round.given_up.initialized());
        let Some(pass) = pass else { return not_asked(self.does_not_answer(at)) };
        lane.asks();
        let answer = self.take(at, round).await;
        let failure = match &answer {
            Err(NoVote::Failed(error)) => Some(error),
            _ => None,
        };
        pass.ended(claim.now(), failure);
        let vote = match answer {
            Ok(Attempt::Granted(grant)) => {
                Vote::Granted(good_until(grant.vouched(), round.asked, claim.ttl()))
            }
            Ok(Attempt::Taken(taken)) => Vote::Taken(taken),
            Ok(_) => Vote::Failed(strange()),
            Err(reason) => Vote::Failed(reason.into()),
        };
        Cast { vote, lane: Some(lane) }
    }

    /// The answer of a node that may vote, and was not restarted meanwhile.
    async fn take(&self, at: usize, round: &Round) -> Result<Attempt, NoVote> {
        let voter = self.voter(at, &round.claim).await?;
        let claim = waiting::as_asked_of_nodes(&round.claim);
        let attempt = voter.driver.try_acquire(&claim).await.map_err(NoVote::Failed)?;
        match (&attempt, &round.waiter) {
            (Attempt::Granted(_), _) => {
                self.confirmed(at, &claim, &voter).await.map_err(NoVote::Barred)?;
            }
            (Attempt::Taken(taken), Some(waiter)) if taken.is_heard() => waiter.is_placed(at),
            _ => (),
        }
        Ok(attempt)
    }

    /// Gives back what a round without a majority has got, or may yet get; returns whether all of
    /// that is gone. The places of a claim that was refused stay.
    ///
    /// Waits for the nodes that have answered, but not for those that have not.
    async fn undo(
        self: &Arc<Self>,
        round: &Arc<Round>,
        votes: &mut Votes<Cast>,
        late: Late<Cast>,
        is_refused: bool,
        patience: Duration,
    ) -> bool {
        let leaves_places = round.claim.waits() && !is_refused;
        let may_be_left = move |vote: &Vote| match vote {
            Vote::Granted(_) => true,
            // A claim that does not wait leaves nothing where it was refused.
            Vote::Taken(_) => leaves_places,
            Vote::Failed(error) => error.kind() == ErrorKind::Unknown,
        };
        let is_all = late.is_empty();
        late.go_on(&self.stragglers, {
            let (this, round) = (Arc::clone(self), Arc::clone(round));
            move |at, Cast { vote, lane }| {
                let lane = lane.filter(|_| may_be_left(&vote));
                let (this, round) = (Arc::clone(&this), Arc::clone(&round));
                async move {
                    if let Some(lane) = lane {
                        // A failure to clear has been reported already.
                        _ = this.clear(at, &round.claim, lane).await;
                    }
                }
            }
        });
        let mut clearing: Vec<BoxFuture<'static, Cleared>> = Vec::new();
        for (at, cast) in votes.iter_mut().enumerate() {
            let Some(Cast { vote, lane }) = cast else { continue };
            if let Some(lane) = lane.take().filter(|_| may_be_left(vote)) {
                let (this, round) = (Arc::clone(self), Arc::clone(round));
                clearing.push(Box::pin(async move { this.clear(at, &round.claim, lane).await }));
            }
        }
        if clearing.is_empty() {
            return is_all;
        }
        let all = |cleared: &Votes<Cleared>| cleared.iter().all(Option::is_some);
        let cleared = ballot::hold(clearing, patience, &self.stragglers, all).await;
        is_all && cleared.iter().all(|outcome| matches!(outcome, Some(Ok(_))))
    }
}

impl Round {
    /// The lane to a node, once what is under way there has been answered; `None` if the round is
    /// given up before.
    async fn enter(&self, at: usize) -> Option<Lane> {
        tokio::select! {
            biased;
            _ = self.given_up.wait() => None,
            lane = Arc::clone(&self.lanes).enter(at) => Some(lane),
        }
    }
}

impl Cast {
    fn is_granted(&self) -> bool {
        matches!(self.vote, Vote::Granted(_))
    }

    fn is_taken(&self) -> bool {
        matches!(self.vote, Vote::Taken(_))
    }

    fn good_until(&self) -> Option<Instant> {
        match self.vote {
            Vote::Granted(lasts) => Some(lasts),
            _ => None,
        }
    }
}

/// How soon so many nodes will be free that there can be a majority.
fn free_in<'a>(refusals: impl Iterator<Item = &'a Taken>, quorum: usize) -> Option<Duration> {
    let mut free: Vec<Duration> = refusals.filter_map(Taken::remaining).collect();
    free.sort_unstable();
    free.get(quorum - 1).copied()
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::Driver as _;
    use lockkit_core::memory::MemoryDriver;
    use lockkit_core::{LockName, Namespace};
    use tokio::task::yield_now;

    use super::*;
    use crate::RedlockDriver;

    /// As while a node refuses to release what it has granted.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_asked_in_time_is_not_asked_later() {
        let nodes = [(); 3].map(|()| MemoryDriver::new());
        let driver = RedlockDriver::over(&nodes).await;
        let name = LockName::new(&Namespace::default(), "wanted").unwrap();
        let [holder, claim] =
            [(); 2].map(|()| Claim::new(name.clone(), Duration::from_secs(10)).waiting());
        for node in &nodes[..2] {
            node.try_acquire(&holder).await.unwrap();
        }
        let lanes = driver.quorum.lanes.of(claim.owner(), 3);
        let _under_way = lanes.try_enter(2).unwrap();
        for _ in 0..10 {
            let Attempt::Taken(_) = driver.try_acquire(&claim).await.unwrap() else {
                panic!("another has it");
            };
        }
        yield_now().await;
        assert!(driver.quorum.stragglers.is_empty());
    }
}
