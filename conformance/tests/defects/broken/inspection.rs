//! The side that looks and breaks.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Claim, Clock, Driver as _, DriverError, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Holder, Label, LockName, LockStatus, Namespace, Waiter};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::Broken;
use crate::catalogue::Defect;

#[async_trait]
impl Inspect for Broken {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        self.reach().await?;
        if self.is_silent() {
            return self.look_in_silence().await;
        }
        let stored = &self.stored(name)?;
        let probe = Claim::new(stored.clone(), Duration::from_secs(1));
        self.expire(&probe);
        match self.server.defect {
            Some(Defect::LooksByTaking) => {
                if let Attempt::Granted(_) = self.memory().try_acquire(&probe).await? {
                    yield_now().await;
                    self.memory().release(&probe).await?;
                }
            }
            Some(Defect::LooksRefresh) => {
                let holder = self.state().last_holders.get(stored).cloned();
                if let Some(holder) = holder {
                    self.memory().renew(&holder).await?;
                }
            }
            Some(Defect::LooksLeaveAnswers) => {
                self.is_unread.store(true, Ordering::Relaxed);
                yield_now().await;
                self.is_unread.store(false, Ordering::Relaxed);
            }
            _ => (),
        }
        let mut status = self.memory().look(stored).await?;
        if self.has(Defect::LooksInAllNamespaces) {
            for other in self.namesakes(stored) {
                if status.holder().is_none() {
                    status = self.memory().look(&other).await?;
                }
            }
        }
        Ok(self.tell(name.clone(), &status))
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        self.reach().await?;
        if self.is_silent() {
            return self.list_in_silence().await;
        }
        let mut namespaces = BTreeSet::from([namespace.clone()]);
        if self.has(Defect::ListsByPrefix) {
            let all = self.server.names().into_iter().map(|name| name.namespace().clone());
            namespaces.extend(all.filter(|other| other.as_str().starts_with(namespace.as_str())));
        }
        let mut held = Vec::new();
        for namespace in namespaces {
            held.extend(self.memory().held(&namespace).await?);
        }
        held.sort_by(|one, other| one.name().cmp(other.name()));
        if self.has(Defect::ListsOnePage) {
            held.truncate(100);
        }
        Ok(held.iter().map(|status| self.list(status)).collect())
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        self.reach().await?;
        if self.is_silent() {
            return self.break_in_silence(name.clone()).await;
        }
        let stored = &self.stored(name)?;
        let owner = owner.map(|owner| self.substitute(owner));
        let holder = self.memory().look(stored).await?.holder().cloned();
        let is_meant = |holder: &Holder| owner.is_none_or(|owner| holder.owner() == owner);
        match self.server.defect {
            Some(Defect::BreaksNothing) => {
                return Ok(holder.filter(is_meant).map(|holder| self.see(stored, &holder)));
            }
            Some(Defect::LooksThenBreaks) => {
                if !holder.as_ref().is_some_and(is_meant) {
                    return Ok(None);
                }
                for _ in 0..20 {
                    yield_now().await;
                }
            }
            Some(Defect::BreaksTheQueue) if holder.as_ref().is_some_and(is_meant) => {
                self.remove_places(stored).await?;
            }
            Some(Defect::NamesArePatterns) => self.release_pattern(stored),
            Some(Defect::BreaksInAllNamespaces) => {
                self.namesakes(stored).iter().for_each(|other| self.memory().revoke(other));
            }
            _ => (),
        }
        let owner = match self.server.defect {
            Some(Defect::BreaksWhoeverHolds | Defect::LooksThenBreaks) => None,
            _ => owner,
        };
        let Some(broken) = self.memory().break_hold(stored, owner).await? else { return Ok(None) };
        self.server.note_loss(stored);
        self.state().broken.insert(broken.owner());
        match self.server.defect {
            Some(Defect::BreaksWithoutAWord) => return Ok(None),
            Some(Defect::BreaksSilently) => {
                for waiter in self.waiters(stored) {
                    // What was sent to it is gone.
                    _ = timeout(Duration::ZERO, self.memory().changed(&waiter)).await;
                }
            }
            _ => (),
        }
        Ok(Some(self.see(stored, &broken)))
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        self.reach().await?;
        if self.is_silent() {
            return self.diagnose_in_silence().await;
        }
        match self.server.defect {
            Some(Defect::DiagnosisTidiesUp) => {
                for name in self.server.names() {
                    self.remove_places(&name).await?;
                }
            }
            Some(Defect::DiagnosisCriesWolf) => {
                return Ok(vec![Diagnosis::error("rights", "no permission", "allow it")]);
            }
            _ => (),
        }
        self.memory().diagnose(namespace).await
    }
}

impl Broken {
    /// Locks of the same name in other namespaces.
    fn namesakes(&self, name: &LockName) -> Vec<LockName> {
        let is_namesake = |other: &LockName| {
            other.as_str() == name.as_str() && other.namespace() != name.namespace()
        };
        self.server.names().into_iter().filter(is_namesake).collect()
    }

    /// What a look says.
    fn tell(&self, name: LockName, stored: &LockStatus) -> LockStatus {
        let mut waiters: Vec<_> = stored.waiters().iter().map(|it| self.see_place(it)).collect();
        match self.server.defect {
            Some(Defect::SeesPlacesBackwards) => waiters.reverse(),
            Some(Defect::SeesDeadWaiters) => {
                for waiter in self.waiters(stored.name()) {
                    let owner = self.original(waiter.owner());
                    if !waiters.iter().any(|known| known.owner() == owner) {
                        waiters.push(Waiter::new(owner).with_label(waiter.label().clone()));
                    }
                }
            }
            _ => (),
        }
        let status = LockStatus::free(name).waited_for_by(waiters);
        let gone = match self.server.defect {
            Some(Defect::SeesTheReleased) => self.state().last_holders.get(stored.name()).cloned(),
            Some(Defect::SeesTheExpired) => {
                let state = self.state();
                state.holders.get(stored.name()).map(|(holder, _)| holder.clone())
            }
            _ => None,
        };
        match (stored.holder(), gone) {
            (Some(holder), _) => status.held_by(self.see(stored.name(), holder)),
            (None, Some(gone)) => {
                status.held_by(self.see(
                    stored.name(),
                    &Holder::new(gone.owner()).with_label(gone.label().clone()),
                ))
            }
            (None, None) => status,
        }
    }

    /// What the list says.
    fn list(&self, stored: &LockStatus) -> LockStatus {
        let name = stored.name();
        let shown = match self.server.defect {
            Some(Defect::ListsStoredNames) => LockName::new(name.namespace(), &name.segment(200)),
            _ => Ok(name.clone()),
        };
        let status = self.tell(shown.unwrap_or_else(|_| name.clone()), stored);
        match self.server.defect {
            Some(Defect::ListsNoPlaces) => status.waited_for_by(Vec::new()),
            _ => status,
        }
    }

    fn see(&self, name: &LockName, holder: &Holder) -> Holder {
        let owner = self.original(holder.owner());
        let state = self.state();
        let token = state.told.get(&holder.owner()).copied().unwrap_or(holder.fencing_token());
        let label = match self.server.defect {
            Some(Defect::SeesItself) => Some(Label::of_this_process()),
            _ => holder.label().cloned(),
        };
        let held_for = match (self.server.defect, state.renewed.get(&holder.owner())) {
            (Some(Defect::CountsFromTheRenewal), Some(renewed)) => {
                Some(Clock::system().now().saturating_duration_since(*renewed))
            }
            (Some(Defect::CountsFromTheFirstGrant), _) => {
                let first = state.first_granted.get(name);
                first.map(|first| Clock::system().now().saturating_duration_since(*first))
            }
            _ => holder.held_for(),
        };
        let remaining = holder.remaining().filter(|_| self.promises_leases());
        let free_in = match self.server.defect {
            Some(Defect::SeesNoTimeLeft) => Some(Duration::ZERO),
            Some(Defect::WrongUnit) => remaining.map(|remaining| remaining * 1000),
            _ => remaining,
        };
        let seen = Holder::new(owner);
        let seen = label.into_iter().fold(seen, Holder::with_label);
        let seen = token.into_iter().fold(seen, Holder::with_token);
        let seen = held_for.into_iter().fold(seen, Holder::with_held_for);
        free_in.into_iter().fold(seen, Holder::with_remaining)
    }

    fn see_place(&self, waiter: &Waiter) -> Waiter {
        let seen = Waiter::new(self.original(waiter.owner()));
        let seen = waiter.label().cloned().into_iter().fold(seen, Waiter::with_label);
        let waiting_for = match (self.server.defect, self.state().refused.get(&waiter.owner())) {
            (Some(Defect::CountsFromTheLastAsk), Some(refused)) => {
                Some(Clock::system().now().saturating_duration_since(*refused))
            }
            _ => waiter.waiting_for(),
        };
        waiting_for.into_iter().fold(seen, Waiter::with_waiting_for)
    }

    /// Whom an owner at the backend stands for.
    fn original(&self, substitute: OwnerId) -> OwnerId {
        self.state().originals.get(&substitute).copied().unwrap_or(substitute)
    }

    /// Who stands for an owner at the backend.
    fn substitute(&self, original: OwnerId) -> OwnerId {
        let state = self.state();
        let mut pairs = state.originals.iter();
        pairs.find(|pair| *pair.1 == original).map_or(original, |pair| *pair.0)
    }

    /// Who was refused and not released.
    pub(super) fn waiters(&self, name: &LockName) -> Vec<Claim> {
        let state = self.state();
        state.waiters.get(name).into_iter().flatten().map(|(_, claim)| claim.clone()).collect()
    }

    pub(super) async fn remove_other_places(&self, claim: &Claim) -> Result<(), DriverError> {
        for waiter in self.waiters(claim.name()) {
            if waiter.owner() != claim.owner() {
                self.memory().release(&waiter).await?;
            }
        }
        Ok(())
    }

    async fn remove_places(&self, name: &LockName) -> Result<(), DriverError> {
        for waiter in self.waiters(name) {
            self.memory().release(&waiter).await?;
        }
        Ok(())
    }
}
