//! What the claims of one connection have together, and should not.

use std::future::pending;

use lockkit_core::driver::{Claim, Driver as _, DriverError, Inspect as _};

use super::Broken;
use crate::catalogue::Defect;

impl Broken {
    /// Whether another claim of this connection has the place that is for all.
    pub(super) fn shares_a_place(&self, claim: &Claim) -> bool {
        let mut state = self.state();
        let key = (self.number, claim.name().clone());
        *state.places.entry(key).or_insert(claim.owner()) != claim.owner()
    }

    /// The place that is for all goes with the claim that took it.
    pub(super) fn leave_place(&self, claim: &Claim) {
        self.state().places.retain(|_, owner| *owner != claim.owner());
    }

    /// Listens in place of whoever did, and resolves when another does.
    pub(super) async fn displaced(&self, claim: &Claim) {
        if !self.has(Defect::OneListenerAConnection) || !claim.is_fair() || self.is_holder(claim) {
            return pending().await;
        }
        let (mut listener, own) = {
            let mut listeners = self.listeners.lock().expect("nobody panics with it in hand");
            let listener = listeners.entry(claim.name().clone()).or_default();
            listener.send_modify(|count| *count += 1);
            (listener.subscribe(), *listener.borrow())
        };
        // The connection outlives its requests.
        _ = listener.wait_for(|count| *count != own).await;
    }

    /// Lets the places of others last for another lease.
    pub(super) async fn refresh_others(&self, claim: &Claim) -> Result<(), DriverError> {
        let status = self.memory().look(claim.name()).await?;
        for waiter in self.waiters(claim.name()) {
            let stands = status.waiters().iter().any(|place| place.owner() == waiter.owner());
            if stands && waiter.owner() != claim.owner() {
                self.memory().try_acquire(&waiter).await?;
            }
        }
        Ok(())
    }
}
