//! A round of renewals: a majority still has the hold, or it is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{Claim, DriverError, Instant, Renewal, Vouch};

use crate::ballot::{self, Votes, count, reached};
use crate::driver::{Quorum, good_until};
use crate::failure::{does_not_answer, silent, strange, unreachable};
use crate::lanes::Lanes;

/// What a node answers to a renewal.
enum Kept {
    /// Until when the hold lasts there.
    Held(Instant),
    Lost,
    Failed(DriverError),
}

impl Quorum {
    pub(crate) async fn renew(self: &Arc<Self>, claim: &Claim) -> Result<Renewal, DriverError> {
        let (nodes, quorum) = (self.nodes.len(), self.nodes.quorum());
        let (holding, lanes) = (claim.clone().not_waiting(), self.lanes.of(claim.owner(), nodes));
        let asked = claim.now();
        let is_held = |kept: &Kept| matches!(kept, Kept::Held(_));
        let is_lost = |kept: &Kept| matches!(kept, Kept::Lost);
        let is_settled = |votes: &Votes<Kept>| {
            count(votes, is_held) >= quorum || count(votes, is_lost) > nodes - quorum
        };
        let keep = |at| Arc::clone(self).keep(at, holding.clone(), lanes.clone(), asked);
        let renewals = (0..nodes).map(keep).collect();
        let limit = claim.call_limit();
        let votes = ballot::hold(renewals, limit, &self.stragglers, is_settled).await;
        if let Some(lasts) = reached(votes.iter().flatten().filter_map(Kept::good_until), quorum) {
            // Where the hold was lost, it is taken again in the background: that is worth a vote at
            // the next renewal, but not at this one, for which the hold was not there all the time.
            let lost =
                votes.iter().enumerate().filter(|(_, vote)| vote.as_ref().is_some_and(is_lost));
            let retake = |(at, _)| Arc::clone(self).retake(at, holding.clone(), lanes.clone());
            let retaking = lost.map(retake).collect();
            ballot::hold(retaking, Duration::ZERO, &self.stragglers, |_| true).await;
            let ttl = lasts.saturating_duration_since(asked);
            return Ok(Renewal::Held(Vouch::Lease { since: asked, ttl }));
        }
        if count(&votes, is_lost) > nodes - quorum {
            // Nobody releases a lost hold; a minority may still have it, or a place from when the
            // claim waited.
            let clearing = (0..nodes).map(|at| self.clear_in_turn(at, claim, &lanes)).collect();
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

    /// Renews the hold at a node. A node that may not vote is asked as well: if it has lost the
    /// hold, that counts.
    fn keep(
        self: Arc<Self>,
        at: usize,
        claim: Claim,
        lanes: Arc<Lanes>,
        asked: Instant,
    ) -> BoxFuture<'static, Kept> {
        Box::pin(async move {
            let lane = lanes.enter(at).await;
            let driver = match self.nodes.members[at].driver() {
                Ok(driver) => driver,
                Err(reason) => return Kept::Failed(unreachable(&*reason)),
            };
            let Some(pass) = self.pass(at, &claim) else { return Kept::Failed(does_not_answer()) };
            lane.asks();
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
    fn retake(
        self: Arc<Self>,
        at: usize,
        claim: Claim,
        lanes: Arc<Lanes>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let lane = Arc::clone(&lanes).enter(at).await;
            if lanes.is_over() || lane.doubtful_for(claim.clock()).is_some() {
                return;
            }
            let Some(pass) = self.pass(at, &claim) else { return };
            lane.asks();
            if let Ok(voter) = self.voter(at, &claim).await {
                let answer = voter.driver.try_acquire(&claim).await;
                pass.answered(claim.now(), &answer);
                let node = &self.nodes.members[at].name;
                tracing::debug!(%node, lock = %claim.name(), ?answer, "was lost there, taken again");
            }
        })
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
