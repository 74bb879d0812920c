//! One request of a claim to a node at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lockkit_core::driver::OwnerId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

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
        let lanes = Arc::new(Lanes((0..nodes).map(|_| Arc::default()).collect()));
        registry.by_owner.insert(owner, Arc::downgrade(&lanes));
        lanes
    }
}

/// The lanes of one claim: what is sent to a node is sent after the answer to what was sent before.
/// Otherwise the end of one round could undo the grant of the next.
#[derive(Debug)]
pub(crate) struct Lanes(Vec<Arc<AsyncMutex<()>>>);

/// The right to send a request to a node.
#[derive(Debug)]
pub(crate) struct Lane {
    _guard: OwnedMutexGuard<()>,
    /// For as long as one is in use, all go by the same.
    _lanes: Arc<Lanes>,
}

impl Lanes {
    /// The lane to a node, if nothing is under way there.
    pub(crate) fn try_enter(self: &Arc<Self>, at: usize) -> Option<Lane> {
        let guard = Arc::clone(&self.0[at]).try_lock_owned().ok()?;
        Some(Lane { _guard: guard, _lanes: Arc::clone(self) })
    }

    /// The lane to a node, once what is under way there was answered.
    pub(crate) async fn enter(self: Arc<Self>, at: usize) -> Lane {
        let lane = Arc::clone(&self.0[at]);
        Lane { _guard: lane.lock_owned().await, _lanes: self }
    }
}
