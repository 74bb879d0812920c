//! Two requests where it takes one: others come in between.

use lockkit_core::LockName;
use lockkit_core::driver::{
    Attempt, Claim, Driver as _, DriverError, Inspect as _, Release, Renewal,
};
use tokio::sync::MutexGuard;
use tokio::task::yield_now;

use super::Broken;
use crate::catalogue::Defect;

impl Broken {
    /// Waits until no other call is under way on this connection, where that is part of the defect.
    pub(super) async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.server.defect {
            Some(
                Defect::LooksThenReleasesInTurn
                | Defect::LooksThenRenewsInTurn
                | Defect::LooksThenAsksInTurn,
            ) => Some(self.turn.lock().await),
            _ => None,
        }
    }

    /// Compares, then deletes whatever is there.
    pub(super) async fn look_then_release(&self, claim: &Claim) -> Result<Release, DriverError> {
        if !self.holds(claim).await? {
            return self.memory().release(claim).await;
        }
        between().await;
        self.memory().revoke(claim.name());
        self.memory().release(claim).await?;
        Ok(Release::Freed)
    }

    /// Compares, then writes over whatever is there.
    pub(super) async fn look_then_renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        if !self.holds(claim).await? {
            return self.memory().renew(claim).await;
        }
        between().await;
        if !self.holds(claim).await? {
            self.memory().revoke(claim.name());
            self.memory().try_acquire(&claim.clone().not_waiting()).await?;
        }
        self.memory().renew(claim).await
    }

    /// Compares, then writes over whatever is there if the hold was the claim's own.
    pub(super) async fn look_then_ask(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if self.holds(claim).await? {
            between().await;
            if !self.holds(claim).await? {
                self.memory().revoke(claim.name());
            }
        }
        self.memory().try_acquire(claim).await
    }

    /// Removes what ran out, or what is there by then, and takes the lock.
    pub(super) async fn remove_then_take(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        if self.has_run_out(claim.name()).await? {
            between().await;
            self.memory().revoke(claim.name());
        }
        self.memory().try_acquire(claim).await
    }

    pub(super) async fn holds(&self, claim: &Claim) -> Result<bool, DriverError> {
        let status = self.memory().look(claim.name()).await?;
        Ok(status.holder().is_some_and(|holder| holder.owner() == claim.owner()))
    }

    /// Whether somebody was told that it holds the lock, and does not by now.
    async fn has_run_out(&self, name: &LockName) -> Result<bool, DriverError> {
        let is_free = self.memory().look(name).await?.holder().is_none();
        Ok(is_free && self.state().holders.contains_key(name))
    }
}

/// The time between two requests.
pub(super) async fn between() {
    for _ in 0..20 {
        yield_now().await;
    }
}
