//! What the backend knows, and each of its steps.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Instant};
use crate::driver::{
    Attempt, Change, Claim, DriverError, ErrorKind, Grant, OwnerId, Release, Renewal, Taken,
};
use crate::{FencingToken, Holder, Label, LockName, LockStatus, Namespace, Waiter};

#[derive(Default)]
pub(super) struct State {
    locks: HashMap<LockName, Entry>,
    mailboxes: Mailboxes,
    /// One counter for all names, so that a name that is at rest costs no memory.
    last_token: Arc<AtomicU64>,
}

#[derive(Default)]
struct Entry {
    held: Option<Held>,
    /// In order of arrival.
    places: VecDeque<Place>,
}

struct Held {
    owner: OwnerId,
    token: FencingToken,
    expiry: Instant,
    granted: Instant,
    who: Who,
}

struct Place {
    owner: OwnerId,
    arrival: Instant,
    who: Who,
    /// A lease after the waiter last asked: when the place ends, and so would a hold handed to it.
    deadline: Instant,
}

/// What is known of a claimant besides its id.
struct Who {
    label: Label,
    clock: Clock,
}

impl Who {
    fn of(claim: &Claim) -> Self {
        Self { label: claim.label().clone(), clock: claim.clock().clone() }
    }
}

impl State {
    /// Has its tokens rise with those of all others that are made with this counter.
    pub(super) fn with_tokens(last: &Arc<AtomicU64>) -> Self {
        Self { last_token: Arc::clone(last), ..Self::default() }
    }

    pub(super) fn try_acquire(&mut self, claim: &Claim) -> Result<Attempt, DriverError> {
        let (now, owner) = (claim.now(), claim.owner());
        self.serve(claim.name());
        let entry = self.locks.entry(claim.name().clone()).or_default();
        if let Some(held) = entry.held.as_mut().filter(|held| held.owner != owner) {
            let taken = Taken::new().free_in(held.remaining());
            if claim.waits() {
                // What was told before this refusal is over.
                self.mailboxes.open(owner).take();
                let deadline = now + claim.ttl();
                match entry.places.iter_mut().find(|place| place.owner == owner) {
                    Some(place) => place.deadline = place.deadline.max(deadline),
                    None => {
                        let who = Who::of(claim);
                        entry.places.push_back(Place { owner, arrival: now, who, deadline });
                    }
                }
            }
            return Ok(Attempt::Taken(taken));
        }
        // This answer tells of what was handed over.
        self.mailboxes.open(owner).take();
        let expiry = now + claim.ttl();
        let token = match &mut entry.held {
            Some(held) => {
                held.expiry = held.expiry.max(expiry);
                held.token
            }
            // Whoever waited would hold it by now.
            free => {
                let token = next_token(&self.last_token)?;
                *free = Some(Held { owner, token, expiry, granted: now, who: Who::of(claim) });
                token
            }
        };
        Ok(Attempt::Granted(Grant::new().token(token)))
    }

    pub(super) fn renew(&mut self, claim: &Claim) -> Renewal {
        let now = claim.now();
        self.serve(claim.name());
        let held = self.locks.get_mut(claim.name()).and_then(|entry| entry.held.as_mut());
        match held.filter(|held| held.owner == claim.owner()) {
            Some(held) => {
                held.expiry = held.expiry.max(now + claim.ttl());
                Renewal::Held(Default::default())
            }
            None => Renewal::Lost,
        }
    }

    pub(super) fn release(&mut self, claim: &Claim) -> Release {
        let owner = claim.owner();
        self.mailboxes.close(owner);
        self.serve(claim.name());
        let Some(entry) = self.locks.get_mut(claim.name()) else { return Release::NotHeld };
        let freed = entry.held.take_if(|held| held.owner == owner).is_some();
        if !freed {
            // A holder has no place, and there may be thousands of places.
            let at = entry.places.iter().position(|place| place.owner == owner);
            _ = at.and_then(|at| entry.places.remove(at));
        }
        self.serve(claim.name());
        if freed { Release::Freed } else { Release::NotHeld }
    }

    pub(super) fn look(&self, name: &LockName) -> LockStatus {
        let status = LockStatus::free(name.clone());
        let Some(entry) = self.locks.get(name) else { return status };
        let waiters = entry.places.iter().filter_map(Place::seen).collect();
        let status = status.waited_for_by(waiters);
        match entry.held.as_ref().and_then(Held::seen) {
            Some(holder) => status.held_by(holder),
            None => status,
        }
    }

    pub(super) fn held(&self, namespace: &Namespace) -> Vec<LockStatus> {
        let names = self.locks.keys().filter(|name| name.namespace() == namespace);
        let mut held: Vec<_> = names.map(|name| self.look(name)).collect();
        held.retain(|status| status.holder().is_some());
        held.sort_by(|one, other| one.name().cmp(other.name()));
        held
    }

    /// How many locks are held or waited for.
    pub(super) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether nothing is left of any claim.
    pub(super) fn is_idle(&self) -> bool {
        self.locks.is_empty() && self.mailboxes.0.is_empty()
    }

    /// Where a claim that waits or holds gets its news.
    pub(super) fn mailbox(&self, owner: OwnerId) -> Option<Arc<Mailbox>> {
        self.mailboxes.0.get(&owner).cloned()
    }

    pub(super) fn break_hold(&mut self, name: &LockName, owner: Option<OwnerId>) -> Option<Holder> {
        let entry = self.locks.get_mut(name)?;
        let is_meant = |held: &mut Held| owner.is_none_or(|owner| held.owner == owner);
        let held = entry.held.take_if(is_meant)?;
        self.mailboxes.tell(held.owner, Change::Lost);
        self.serve(name);
        // A lease that had run out was nobody's hold.
        held.seen()
    }

    /// Ends a lease that has run out, and hands a free lock to the first place that is alive.
    fn serve(&mut self, name: &LockName) {
        let Some(entry) = self.locks.get_mut(name) else { return };
        if let Some(Held { owner, .. }) = entry.held.take_if(|held| held.remaining().is_zero()) {
            self.mailboxes.close_if_over(owner);
        }
        while entry.held.is_none()
            && let Some(Place { owner, deadline, who, .. }) = entry.places.pop_front()
        {
            let now = who.clock.now();
            if deadline <= now {
                self.mailboxes.close_if_over(owner);
                continue;
            }
            // Without a token there is no grant; the waiter hears of it at its next ask.
            let Ok(token) = next_token(&self.last_token) else { break };
            entry.held = Some(Held { owner, token, expiry: deadline, granted: now, who });
            self.mailboxes.tell(owner, Change::Granted(Grant::new().token(token)));
        }
        if entry.held.is_none() && entry.places.is_empty() {
            self.locks.remove(name);
        }
    }
}

impl Held {
    /// By the clock of its holder: each machine of a test has its own.
    fn remaining(&self) -> Duration {
        self.expiry.saturating_duration_since(self.who.clock.now())
    }

    /// The hold as others see it, unless it has run out.
    fn seen(&self) -> Option<Holder> {
        let now = self.who.clock.now();
        let free_in = self.remaining();
        let holder =
            Holder::new(self.owner).with_label(self.who.label.clone()).with_token(self.token);
        let holder = holder
            .with_held_for(now.saturating_duration_since(self.granted))
            .with_remaining(free_in);
        (!free_in.is_zero()).then_some(holder)
    }
}

impl Place {
    /// The place as others see it, unless it has run out.
    fn seen(&self) -> Option<Waiter> {
        let now = self.who.clock.now();
        let waiter = Waiter::new(self.owner).with_label(self.who.label.clone());
        let waiter = waiter.with_waiting_for(now.saturating_duration_since(self.arrival));
        (self.deadline > now).then_some(waiter)
    }
}

fn next_token(last: &AtomicU64) -> Result<FencingToken, DriverError> {
    FencingToken::new(last.fetch_add(1, Ordering::Relaxed) + 1)
        .ok_or_else(|| DriverError::new(ErrorKind::Capacity, "the fencing tokens are used up"))
}

/// News for claims that wait or hold.
#[derive(Default)]
struct Mailboxes(HashMap<OwnerId, Arc<Mailbox>>);

#[derive(Default)]
pub(super) struct Mailbox {
    news: Mutex<Option<Change>>,
    pub(super) arrival: Notify,
}

impl Mailboxes {
    fn open(&mut self, owner: OwnerId) -> &Mailbox {
        self.0.entry(owner).or_default()
    }

    fn close(&mut self, owner: OwnerId) {
        self.0.remove(&owner);
    }

    /// For an owner whose hold or place has run out, and that may be dead, or only late: it then
    /// reads that it has lost, or asks again.
    fn close_if_over(&mut self, owner: OwnerId) {
        if self.0.get(&owner).is_some_and(|mailbox| mailbox.is_over()) {
            self.close(owner);
        }
    }

    fn tell(&self, owner: OwnerId, change: Change) {
        if let Some(mailbox) = self.0.get(&owner) {
            *mailbox.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(change);
            mailbox.arrival.notify_one();
        }
    }
}

impl Mailbox {
    pub(super) fn take(&self) -> Option<Change> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether there is no news that is still true when a hold or a place has run out.
    fn is_over(&self) -> bool {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*news, None | Some(Change::Granted(_)))
    }
}
