//! One request of a claim to a node at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lockkit_core::driver::OwnerId;
use tokio::sync::Semaphore;

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
        let lanes = Arc::new(Lanes((0..nodes).map(|_| Semaphore::new(1)).collect()));
        registry.by_owner.insert(owner, Arc::downgrade(&lanes));
        lanes
    }
}

/// The lanes of one claim: what is sent to a node is sent after the answer to what was sent before.
/// Otherwise the end of one round could undo the grant of the next.
#[derive(Debug)]
pub(crate) struct Lanes(Box<[Semaphore]>);

/// The right to send a request to a node.
#[derive(Debug)]
pub(crate) struct Lane {
    at: usize,
    /// For as long as one is in use, all go by the same.
    lanes: Arc<Lanes>,
}

impl Lanes {
    /// The lane to a node, if nothing is under way there.
    pub(crate) fn try_enter(self: &Arc<Self>, at: usize) -> Option<Lane> {
        self.0[at].try_acquire().ok()?.forget();
        Some(Lane { at, lanes: Arc::clone(self) })
    }

    /// The lane to a node, once what is under way there was answered.
    pub(crate) async fn enter(self: Arc<Self>, at: usize) -> Lane {
        self.0[at].acquire().await.expect("the semaphore is never closed").forget();
        Lane { at, lanes: self }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.lanes.0[self.at].add_permits(1);
    }
}
