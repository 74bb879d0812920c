use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, Grant, OwnerId, Release, Renewal, Taken,
};
use lockkit_core::{Capabilities, Fairness, FencingToken, Liveness};
use tokio::sync::Notify;

/// A driver that answers at once, and costs next to nothing: what is measured over it is the engine.
///
/// Clones are the same backend, which has as many locks as there are names, or a single one.
#[derive(Clone, Debug, Default)]
pub struct AtOnce(Arc<Backend>);

#[derive(Debug, Default)]
struct Backend {
    /// The owner of the single lock, if there is but one.
    single: Option<Mutex<Option<OwnerId>>>,
    freed: Notify,
    grants: AtomicU64,
    renewals: AtomicU64,
}

impl AtOnce {
    /// A backend whose locks are never taken: for whoever acquires no name twice.
    pub fn free() -> Self {
        Self::default()
    }

    /// A backend where all names are the same lock, which tells its waiters when it is released.
    pub fn single() -> Self {
        Self(Arc::new(Backend { single: Some(Mutex::default()), ..Backend::default() }))
    }

    /// How many renewals were asked for.
    pub fn renewals(&self) -> u64 {
        self.0.renewals.load(Ordering::Relaxed)
    }
}

impl Backend {
    fn holder(&self) -> Option<MutexGuard<'_, Option<OwnerId>>> {
        let single = self.single.as_ref()?;
        Some(single.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Driver for AtOnce {
    fn id(&self) -> &'static str {
        "at-once"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Liveness::Lease).fairness(Fairness::OnRequest).fencing().notification()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if let Some(mut holder) = self.0.holder()
            && *holder.get_or_insert(claim.owner()) != claim.owner()
        {
            return Ok(Attempt::Taken(Taken::new()));
        }
        let token = FencingToken::new(self.0.grants.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(Attempt::Granted(token.map_or(Grant::new(), |token| Grant::new().token(token))))
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        self.0.renewals.fetch_add(1, Ordering::Relaxed);
        Ok(Renewal::Held(Default::default()))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if let Some(mut holder) = self.0.holder() {
            if holder.take_if(|owner| *owner == claim.owner()).is_none() {
                return Ok(Release::NotHeld);
            }
            self.0.freed.notify_one();
        }
        Ok(Release::Freed)
    }

    /// For the one waiter of a locker whose turn it is.
    async fn changed(&self, claim: &Claim) -> Change {
        match self.0.holder().map(|holder| *holder == Some(claim.owner())) {
            Some(false) => self.0.freed.notified().await,
            _ => std::future::pending().await,
        }
        Change::AskAgain
    }
}
