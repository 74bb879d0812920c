//! A round of renewals: a majority still has the hold, or it is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{Attempt, Claim, DriverError, ErrorKind, Instant, Renewal, Vouch};

use crate::ballot::{self, Votes, count, reached};
use crate::driver::{Quorum, good_until};
use crate::failure::{Left, silent, strange, unreachable};
use crate::lanes::Lanes;
use crate::member::causes;

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
        let (votes, late) = ballot::open(renewals, limit, is_settled).await;
        let lasts = reached(votes.iter().flatten().filter_map(Kept::good_until), quorum);
        if lasts.is_none() && count(&votes, is_lost) > nodes - quorum {
            late.go_on_unheard(&self.stragglers);
            // A minority may still have it, or a place from when the claim waited. The release that
            // follows a loss may be long in coming, and others want the lock.
            lanes.end();
            let clearing = (0..nodes).map(|at| self.clear_in_turn(at, claim, &lanes)).collect();
            ballot::hold(clearing, Duration::ZERO, &self.stragglers, |_| true).await;
            return Ok(Renewal::Lost);
        }
        // Where the hold was lost, it is taken again in the background: that is worth a vote at the
        // next renewal, but not at this one, for which the hold was not there all the time. Also
        // where this one fails: until the lease is over, no others have a majority.
        let retake = {
            let (this, holding, lanes) = (Arc::clone(self), holding.clone(), lanes.clone());
            move |at| Arc::clone(&this).retake(at, holding.clone(), lanes.clone())
        };
        let lost = votes.iter().enumerate().filter(|(_, vote)| vote.as_ref().is_some_and(is_lost));
        let retaking = lost.map(|(at, _)| retake(at)).collect();
        ballot::hold(retaking, Duration::ZERO, &self.stragglers, |_| true).await;
        late.go_on(&self.stragglers, move |at, kept| {
            let retaking = retake(at);
            async move {
                if is_lost(&kept) {
                    retaking.await;
                }
            }
        });
        if let Some(lasts) = lasts {
            let ttl = lasts.saturating_duration_since(asked);
            return Ok(Renewal::Held(Vouch::Lease { since: asked, ttl }));
        }
        let held = count(&votes, is_held);
        let failures = votes.into_iter().map(|vote| match vote {
            None => Some(silent()),
            Some(Kept::Failed(error)) => Some(error),
            Some(Kept::Lost) => Some(unreachable("it has lost the hold")),
            Some(Kept::Held(_)) => None,
        });
        Err(self.no_majority(held, failures, Left::AsTheySay))
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
            let Some(pass) = self.pass(at, &claim).await else {
                return Kept::Failed(self.does_not_answer(at));
            };
            // A release that was not answered may end the hold there after it was renewed.
            let is_in_doubt = lane.doubtful_for(claim.clock()).is_some();
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
                Ok(()) if is_in_doubt => {
                    Kept::Failed(unreachable("a release of this claim may still arrive there"))
                }
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
            let Some(pass) = self.pass(at, &claim).await else { return };
            lane.asks();
            if let Ok(voter) = self.voter(at, &claim).await {
                let answer = voter.driver.try_acquire(&claim).await;
                pass.answered(claim.now(), &answer);
                // With too few replicas, the node's driver gives back what it was granted, and that
                // may come late.
                if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unknown) {
                    let until = claim.now() + claim.ttl();
                    lane.doubt(until);
                    self.keep_in_mind(&lane, &claim, until);
                }
                let (node, lock) = (&self.nodes.members[at].name, claim.name());
                let why = match answer {
                    Ok(Attempt::Granted(_)) => {
                        return tracing::debug!(%node, %lock, "was lost there, and is taken again");
                    }
                    Ok(Attempt::Taken(_)) => "somebody else has it".into(),
                    Ok(_) => causes(&*strange().into_source()),
                    Err(error) => causes(&*error.into_source()),
                };
                tracing::debug!(%node, %lock, %why, "was lost there, and is not taken again");
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

#[cfg(test)]
mod tests {
    use lockkit_core::driver::Driver as _;
    use lockkit_core::memory::MemoryDriver;
    use lockkit_core::{LockName, Namespace};

    use super::*;
    use crate::RedlockDriver;

    #[tokio::test]
    async fn a_node_where_a_release_may_still_arrive_keeps_no_hold() {
        let nodes = [(); 3].map(|()| MemoryDriver::new());
        let driver = RedlockDriver::over(&nodes).await;
        let name = LockName::new(&Namespace::default(), "wanted").unwrap();
        let claim = Claim::new(name, Duration::from_secs(10));
        let Attempt::Granted(_) = driver.try_acquire(&claim).await.unwrap() else {
            panic!("nobody else wants it");
        };
        let lanes = driver.quorum.lanes.of(claim.owner(), 3);
        lanes.try_enter(2).unwrap().doubt(claim.now() + Duration::from_secs(5));
        assert!(matches!(driver.renew(&claim).await, Ok(Renewal::Held(_))));
        nodes[0].release(&claim).await.unwrap();
        driver.renew(&claim).await.unwrap_err();
    }
}
