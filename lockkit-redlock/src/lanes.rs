//! One request of a claim to a node at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkit_core::driver::{Claim, Clock, Instant, OwnerId};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The lanes of all claims that have a request under way.
#[derive(Debug, Default)]
pub(crate) struct AllLanes(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    by_owner: HashMap<OwnerId, Weak<Lanes>>,
    /// At how many entries to look for those that nobody uses any more.
    crowded: usize,
}

impl AllLanes {
    /// The lanes of one claim, to each of `nodes`.
    pub(crate) fn of(&self, owner: OwnerId, nodes: usize) -> Arc<Lanes> {
        // Nothing panics while it holds the lock.
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lanes) = registry.by_owner.get(&owner).and_then(Weak::upgrade) {
            return lanes;
        }
        if registry.by_owner.len() >= registry.crowded {
            registry.by_owner.retain(|_, lanes| lanes.strong_count() > 0);
            registry.crowded = (2 * registry.by_owner.len()).max(64);
        }
        let tracks = (0..nodes).map(|_| Track::default()).collect();
        let lanes = Arc::new(Lanes { tracks, is_over: AtomicBool::new(false) });
        registry.by_owner.insert(owner, Arc::downgrade(&lanes));
        lanes
    }
}

/// The lanes of one claim: what is sent to a node is sent only after the answer to what was sent
/// before. Otherwise the end of one round could undo the grant of the next.
#[derive(Debug)]
pub(crate) struct Lanes {
    tracks: Box<[Track]>,
    /// Whether the claim was released or has lost its hold, which ends it.
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Track {
    turn: Semaphore,
    past: Mutex<Past>,
}

/// What was sent to a node before.
#[derive(Debug, Default)]
struct Past {
    /// Until when a release may arrive that the node has not answered.
    doubtful_until: Option<Instant>,
    /// Since when nothing but releases has been sent.
    clears_since: Option<Instant>,
    /// How long a lease may be, of those that whoever came last is to remove, if it is.
    clears_leases: Option<Duration>,
}

impl Default for Track {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), past: Mutex::default() }
    }
}

/// The right to send a request to a node.
#[derive(Debug)]
pub(crate) struct Lane {
    at: usize,
    /// While one of them is in use, all requests of the claim go by the same lanes.
    lanes: Arc<Lanes>,
}

impl Lanes {
    /// Takes note that the claim has ended: what is sent from now on would come after that.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The lane to a node, if nothing is under way there.
    pub(crate) fn try_enter(self: &Arc<Self>, at: usize) -> Option<Lane> {
        self.tracks[at].turn.try_acquire().ok()?.forget();
        self.past(at).clears_leases = None;
        Some(Lane { at, lanes: Arc::clone(self) })
    }

    /// The lane to a node, once what is under way there has been answered.
    pub(crate) async fn enter(self: Arc<Self>, at: usize) -> Lane {
        self.past(at).clears_leases = None;
        self.turn(at).await
    }

    /// The same, to remove the claim from the node. `None` if the last of those ahead does that
    /// already, and they take longer than a request may.
    pub(crate) async fn enter_to_clear(self: Arc<Self>, at: usize, claim: &Claim) -> Option<Lane> {
        let lease = Some(claim.ttl());
        let is_seen_to = {
            let cleared = &mut self.past(at).clears_leases;
            let is_seen_to = *cleared >= lease;
            *cleared = lease.max(*cleared);
            is_seen_to
        };
        match is_seen_to {
            true => timeout(claim.call_limit(), self.turn(at)).await.ok(),
            false => Some(self.turn(at).await),
        }
    }

    async fn turn(self: Arc<Self>, at: usize) -> Lane {
        self.tracks[at].turn.acquire().await.expect("the semaphore is never closed").forget();
        Lane { at, lanes: self }
    }

    fn past(&self, at: usize) -> MutexGuard<'_, Past> {
        // Nothing panics while it holds the lock.
        self.tracks[at].past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Takes note that something is sent that may begin a hold, or make one last.
    pub(crate) fn asks(&self) {
        self.past().clears_since = None;
    }

    /// Takes note that the claim is removed from the node. Returns since when it has been, if it
    /// was so before and nothing else has been sent since.
    pub(crate) fn clears(&self, now: Instant) -> Option<Instant> {
        let mut past = self.past();
        let before = past.clears_since;
        past.clears_since = before.or(Some(now));
        before
    }

    /// Takes note that a release was not answered, and may arrive until then.
    pub(crate) fn doubt(&self, until: Instant) {
        let mut past = self.past();
        past.doubtful_until = past.doubtful_until.max(Some(until));
    }

    /// For how long something may arrive that would undo what the node grants, if anything may.
    pub(crate) fn doubtful_for(&self, clock: &Clock) -> Option<Duration> {
        let until = self.past().doubtful_until?;
        let left = until.saturating_duration_since(clock.now());
        (!left.is_zero()).then_some(left)
    }

    /// The lanes that this is one of; they keep what is known of each.
    pub(crate) fn lanes(&self) -> Arc<Lanes> {
        Arc::clone(&self.lanes)
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.lanes.past(self.at)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.lanes.tracks[self.at].turn.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Namespace};
    use tokio::task::yield_now;
    use tokio::time::sleep;

    use super::*;

    /// Else what is asked for meanwhile, or lasts for longer, would stay.
    #[tokio::test(start_paused = true)]
    async fn who_clears_after_another_does_not_wait_for_ever_unless_there_is_more_to_clear() {
        let name = LockName::new(&Namespace::default(), "wanted").unwrap();
        let claim = Claim::new(name, Duration::from_secs(10));
        let lanes = AllLanes::default().of(claim.owner(), 1);
        let clearing = |claim: &Claim| {
            let (lanes, claim) = (Arc::clone(&lanes), claim.clone());
            async move { lanes.enter_to_clear(0, &claim).await }
        };
        let first = clearing(&claim).await.unwrap();
        assert!(clearing(&claim).await.is_none());

        let longer = tokio::spawn(clearing(&claim.clone().with_ttl(Duration::from_secs(20))));
        yield_now().await;
        let ask = tokio::spawn(Arc::clone(&lanes).enter(0));
        yield_now().await;
        let last = tokio::spawn(clearing(&claim));
        sleep(Duration::from_secs(3600)).await;
        drop(first);
        drop(longer.await.unwrap().unwrap());
        let ask = ask.await.unwrap();
        sleep(Duration::from_secs(3600)).await;
        drop(ask);
        assert!(last.await.unwrap().is_some());
    }

    #[test]
    fn lanes_are_kept_for_as_long_as_they_are_used() {
        let all = AllLanes::default();
        let used = [(); 100].map(|()| OwnerId::random()).map(|owner| (owner, all.of(owner, 3)));
        for _ in 0..1_000 {
            drop(all.of(OwnerId::random(), 3));
        }
        for (owner, lanes) in &used {
            assert!(Arc::ptr_eq(lanes, &all.of(*owner, 3)));
        }
        let known = all.0.lock().unwrap().by_owner.len();
        assert!(known < 4 * used.len(), "{known}");
    }
}
