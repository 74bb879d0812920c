//! What several claims have to do with each other, and should not.

use std::future::pending;
use std::time::Duration;

use lockkit_core::LockName;
use lockkit_core::driver::{Change, Claim, Driver as _, DriverError, Inspect as _, Release};
use tokio::time::{sleep, timeout};

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

    /// Takes from others what they have not heard, if the claim has only come.
    pub(super) async fn take_news(&self, claim: &Claim) {
        if self.state().asked.insert(claim.owner()) {
            self.take_all_news(claim).await;
        }
    }

    async fn take_all_news(&self, claim: &Claim) {
        for waiter in self.waiters(claim.name()) {
            _ = timeout(Duration::ZERO, self.memory().changed(&waiter)).await;
        }
    }

    /// Releases the claim, and takes from the next one what it has not heard if it was handed the
    /// lock by that.
    pub(super) async fn decline_in_silence(&self, claim: &Claim) -> Result<Release, DriverError> {
        let is_its_turn = self.holds(claim).await?;
        let answer = self.memory().release(claim).await?;
        if is_its_turn {
            self.take_all_news(claim).await;
        }
        Ok(answer)
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

    /// Resolves when the connection listens no more for what the claim waits for.
    pub(super) async fn unsubscribed(&self, claim: &Claim) {
        if !self.has(Defect::LeavingEndsListening)
            || !claim.waits()
            || claim.is_fair()
            || self.is_holder(claim)
        {
            return pending().await;
        }
        // The connection outlives its requests.
        _ = self.listened_to.subscribe().wait_for(|names| !names.contains(claim.name())).await;
    }

    /// Whether a claim to another lock came before this one, and waits in what is the same queue to
    /// this backend.
    pub(super) fn is_behind_a_stranger(&self, claim: &Claim) -> bool {
        let is_same_queue = |other: &LockName| match self.server.defect {
            Some(Defect::QueuesIgnoreCase) => {
                other.namespace() == claim.name().namespace()
                    && other.as_str().to_lowercase() == claim.name().as_str().to_lowercase()
            }
            _ => other.as_str() == claim.name().as_str(),
        };
        let came = |claim: &Claim| {
            let state = self.state();
            state.first_asked.get(&claim.owner()).copied()
        };
        let names = self.server.names();
        let others = names.iter().filter(|name| *name != claim.name() && is_same_queue(name));
        let mut strangers = others.flat_map(|name| self.waiters(name));
        strangers.any(|stranger| stranger.is_fair() && came(&stranger) < came(claim))
    }

    /// Gives whoever came first a new place if all were numbered in order of arrival, and sorted by
    /// the digits.
    pub(super) async fn sort_places(&self, last: &Claim) -> Result<(), DriverError> {
        let before = self.waiters(last.name());
        let numbers = {
            let mut state = self.state();
            let arrivals = state.arrivals.entry(last.name().clone()).or_default();
            if before.is_empty() {
                arrivals.clear();
            }
            arrivals.push(last.owner());
            arrivals.clone()
        };
        // Up to nine are in order.
        if numbers.len() < 10 {
            return Ok(());
        }
        let number = |claim: &Claim| {
            let place = numbers.iter().position(|owner| *owner == claim.owner());
            place.map(|place| (place + 1).to_string())
        };
        let status = self.memory().look(last.name()).await?;
        let stands =
            |claim: &Claim| status.waiters().iter().any(|place| place.owner() == claim.owner());
        let mut queue: Vec<_> = before.into_iter().chain([last.clone()]).collect();
        queue.retain(stands);
        queue.sort_by_key(number);
        for claim in &queue {
            self.memory().release(claim).await?;
        }
        for claim in &queue {
            self.memory().try_acquire(claim).await?;
        }
        self.server.sorts.send_modify(|sorts| *sorts += 1);
        Ok(())
    }

    /// What the backend tells, also if the claim got another place meanwhile.
    pub(super) async fn news(&self, claim: &Claim) -> Change {
        let mut sorts = self.server.sorts.subscribe();
        loop {
            tokio::select! {
                biased;
                change = self.memory().changed(claim) => return change,
                // The server outlives its connections.
                _ = sorts.changed() => (),
            }
        }
    }

    /// Listens again a moment after a cut, and has not heard what came before.
    pub(super) async fn skip_the_gap(&self, claim: &Claim) {
        sleep(Duration::from_millis(100)).await;
        _ = timeout(Duration::ZERO, self.memory().changed(claim)).await;
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
