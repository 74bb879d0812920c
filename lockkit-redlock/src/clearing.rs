//! A round of releases, and how a claim is removed from one node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{Claim, DriverError, ErrorKind, Instant, Release};

use crate::ballot::{self, A_MOMENT, Settled, Votes, count};
use crate::driver::Quorum;
use crate::failure::{Left, silent, unreachable};
use crate::lanes::{Lane, Lanes};
use crate::waiting::as_asked_of_nodes;

/// The longest pause between two attempts to release what a node has not let go of.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a node answers to a release.
pub(crate) type Cleared = Result<Release, DriverError>;

impl Quorum {
    pub(crate) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Release, DriverError> {
        let (nodes, quorum) = (self.nodes.len(), self.nodes.quorum());
        if claim.waits() {
            self.waiters.leave(claim.owner());
        }
        let lanes = self.lanes.of(claim.owner(), nodes);
        lanes.end();
        let freed =
            |votes: &Votes<Cleared>| count(votes, |vote| matches!(vote, Ok(Release::Freed)));
        let not_held =
            |votes: &Votes<Cleared>| count(votes, |vote| matches!(vote, Ok(Release::NotHeld)));
        let is_settled = |votes: &Votes<Cleared>| {
            let is_awaited =
                |(at, vote): (usize, &Option<_>)| vote.is_none() && !self.is_silent(at, claim);
            let is_awaited = votes.iter().enumerate().any(is_awaited);
            let (freed, not_held) = (freed(votes), not_held(votes));
            let is_known = freed >= quorum || not_held > nodes - quorum;
            match is_awaited {
                true if is_known => Settled::Nearly(A_MOMENT),
                // On some nodes it may have been, and on others not.
                false if is_known || freed + not_held >= quorum => Settled::Yes,
                _ => Settled::No,
            }
        };
        let clearing = (0..nodes).map(|at| self.clear_in_turn(at, claim, &lanes)).collect();
        let limit = claim.call_limit();
        // Otherwise, whoever comes next may find too few nodes free.
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
        Err(self.no_majority(freed + not_held, failures, Left::AsTheySay))
    }

    /// Removes the claim from a node, once what is under way there has been answered. Where the
    /// claim is being removed already, this does not wait for ever: a release is repeated for as
    /// long as a majority is silent, and all of these would be sent when the node is back.
    pub(crate) fn clear_in_turn(
        self: &Arc<Self>,
        at: usize,
        claim: &Claim,
        lanes: &Arc<Lanes>,
    ) -> BoxFuture<'static, Cleared> {
        let (this, claim, lanes) = (Arc::clone(self), claim.clone(), Arc::clone(lanes));
        Box::pin(async move {
            match lanes.enter_to_clear(at, &claim).await {
                Some(lane) => this.clear(at, &claim, lane).await,
                None => Err(silent()),
            }
        })
    }

    /// Removes the claim from a node, with as many requests as it takes, for as long as a hold can
    /// last there. One of those that were not answered may arrive late, and undo what is granted by
    /// then: that is kept in mind for as long as it matters. So is the fact that the hold has run
    /// out there, lest a repeated release take as long again.
    pub(crate) async fn clear(&self, at: usize, claim: &Claim, lane: Lane) -> Cleared {
        let now = claim.now();
        let before = lane.clears(now);
        let gone_by_itself = before.unwrap_or(now) + claim.ttl();
        let mut unanswered = None;
        let has_left = before.is_some();
        let cleared = self.remove(at, claim, gone_by_itself, has_left, &mut unanswered).await;
        let doubtful_until = unanswered.map(|unanswered| unanswered.end(cleared.is_ok(), claim));
        if let Some(end) = doubtful_until {
            lane.doubt(end);
        }
        let has_run_out = before.is_none() && cleared.is_err() && claim.now() >= gone_by_itself;
        let repeated_until = has_run_out.then(|| gone_by_itself + claim.ttl());
        if let Some(end) = doubtful_until.max(repeated_until) {
            self.keep_in_mind(&lane, claim, end);
        }
        cleared
    }

    /// Keeps what is known of the lanes until then.
    pub(crate) fn keep_in_mind(&self, lane: &Lane, claim: &Claim, until: Instant) {
        let (lanes, over, clock) = (lane.lanes(), self.over.clone(), claim.clock().clone());
        self.stragglers.spawn(async move {
            let _lanes = lanes;
            tokio::select! {
                () = over.cancelled() => (),
                () = clock.sleep_until(until) => (),
            }
        });
    }

    async fn remove(
        &self,
        at: usize,
        claim: &Claim,
        gone_by_itself: Instant,
        mut has_left: bool,
        unanswered: &mut Option<Unanswered>,
    ) -> Cleared {
        let Ok(driver) = self.nodes.members[at].driver() else {
            return Ok(Release::NotHeld);
        };
        let claim = as_asked_of_nodes(claim);
        let patience = self.nodes.settings.patience(claim.ttl());
        // The driver of the node listens until it is told of a release.
        has_left |= !claim.listens();
        if has_left && claim.now() >= gone_by_itself && self.is_silent(at, &claim) {
            return Err(self.does_not_answer(at));
        }
        loop {
            let pass = tokio::select! {
                biased;
                pass = self.nodes.members[at].pulse.passed(claim.clock(), patience) => pass,
                () = self.over.cancelled() => return Err(unreachable("the driver was closed")),
                () = claim.clock().sleep_until(gone_by_itself) => None,
            };
            // Where too many wait, the hold runs out by itself.
            if pass.is_none() && has_left {
                return Err(self.does_not_answer(at));
            }
            has_left = true;
            let sent = pass.as_ref().map_or_else(|| claim.now(), |pass| pass.begun);
            let answer = driver.release(&claim).await;
            if let Some(pass) = pass {
                pass.answered(claim.now(), &answer);
            }
            let error = match answer {
                // One that was not answered may have freed it.
                Ok(Release::NotHeld) if unanswered.is_some() => return Ok(Release::Freed),
                Ok(release) => return Ok(release),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Unknown {
                unanswered.get_or_insert(Unanswered { first: sent, last: sent }).last = sent;
            }
            let node = &self.nodes.members[at].name;
            tracing::debug!(%node, lock = %claim.name(), %error, "not released there yet");
            let pause = (claim.ttl() / 20).min(LONGEST_PAUSE);
            let pause = claim.clock().sleep_until(claim.now() + pause);
            tokio::select! {
                () = self.over.cancelled() => return Err(error),
                () = pause => if claim.now() >= gone_by_itself { return Err(error) },
            }
        }
    }
}

/// The times at which the first and the last of the unanswered releases left.
struct Unanswered {
    first: Instant,
    last: Instant,
}

impl Unanswered {
    /// Until when one of them may arrive. Nothing is believed to be on its way for longer than a
    /// lease; if another one has been answered since, for as long again as that took at most, and a
    /// second: TCP repeats what was not acknowledged after pauses that double, the first of which
    /// is a second (RFC 6298).
    fn end(&self, is_answered: bool, claim: &Claim) -> Instant {
        const FIRST_PAUSE: Duration = Duration::from_secs(1);
        let (now, end) = (claim.now(), self.last + claim.ttl());
        match is_answered {
            true => end.min(now + now.saturating_duration_since(self.first) + FIRST_PAUSE),
            false => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};
    use tokio::time::sleep;

    use super::*;

    /// Those that were lost at 0 and after one and three seconds are followed by one after seven.
    #[tokio::test(start_paused = true)]
    async fn what_tcp_repeats_next_is_waited_for() {
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let claim = Claim::new(name, Duration::from_secs(13));
        let unanswered = Unanswered { first: claim.now(), last: claim.now() };
        let seventh = claim.now() + Duration::from_secs(7);
        sleep(Duration::from_millis(3_200)).await;
        assert!(unanswered.end(true, &claim) > seventh);
    }
}
