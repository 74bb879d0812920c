use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Claim, DriverError, Grant, Limit, OwnerId, Vouch};

use crate::error::Failure;
use crate::layout::{Dialect, Queue};
use crate::leases::Lease;
use crate::queue::Place;
use crate::reader::Haste;

/// The claims of this process, by owner.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: HashMap<OwnerId, Arc<Entry>>,
    /// How many there have to be for the next sweep.
    many: usize,
}

/// What this process asked for and has not released: which lease a claim has, and what the cluster
/// may know of it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) owner: OwnerId,
    pub(crate) queue: Queue,
    traces: Mutex<Traces>,
    turn: Turn,
}

/// Taken by whoever changes which leases a claim has, for as long as that takes.
type Turn = tokio::sync::Mutex<()>;
type OnTurn<'a> = tokio::sync::MutexGuard<'a, ()>;

/// What the cluster may know of a claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    /// The lease that the key hangs on, or may yet hang on.
    pub(crate) lease: Option<Arc<Lease>>,
    /// A longer lease that was asked for.
    pub(crate) longer: Option<Arc<Lease>>,
    /// The key that was asked for last. It is named after the lease that it was first put with.
    pub(crate) key: Arc<str>,
    /// When the key was created, once that was answered.
    pub(crate) created: Option<i64>,
    /// When the key was created that was just before it at the last look. The board knows what that
    /// key is called.
    pub(crate) ahead: Option<i64>,
    /// Whether something may have been missed since the last look.
    pub(crate) looks_again: bool,
    pub(crate) is_granted: bool,
    /// Whether a request that names a lease was not answered, and may yet be carried out.
    pub(crate) in_doubt: bool,
}

/// A key of a claim's that is there, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) key: Arc<str>,
    pub(crate) created: i64,
    pub(crate) lease: Arc<Lease>,
}

impl Entries {
    /// The entry of the claim, which is made if there is none.
    pub(crate) fn of(&mut self, claim: &Claim, dialect: Dialect) -> Arc<Entry> {
        self.sweep();
        let entry = || {
            let (owner, queue) = (claim.owner(), Queue::of(claim.name(), dialect));
            Arc::new(Entry { owner, queue, traces: Mutex::default(), turn: Turn::default() })
        };
        Arc::clone(self.all.entry(claim.owner()).or_insert_with(entry))
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<Arc<Entry>> {
        self.all.get(&owner).cloned()
    }

    pub(crate) fn remove(&mut self, owner: OwnerId) {
        self.all.remove(&owner);
    }

    /// Forgets the claims whose releases were never answered, a good while after the cluster has
    /// forgotten them.
    fn sweep(&mut self) {
        const FEW: usize = 64;
        if self.all.len() >= self.many.max(FEW) {
            self.all.retain(|_, entry| !entry.is_forgotten());
            self.many = self.all.len() * 2;
        }
    }
}

impl Entry {
    /// Whether the lease must have run out long ago, and with it whatever hung on it.
    fn is_forgotten(&self) -> bool {
        self.lease().is_some_and(|lease| lease.age() > lease.ttl() * 4 + Duration::from_secs(10))
    }

    /// Whether something may yet be carried out, and whether the claim has a place.
    pub(crate) fn doubts(&self) -> (bool, bool) {
        let traces = self.traces();
        (traces.in_doubt, traces.created.is_some())
    }

    /// Waits until nobody else changes which leases the claim has.
    pub(crate) async fn turn(&self, limit: Limit) -> Result<OnTurn<'_>, Failure> {
        let turn = limit.bound(self.turn.lock()).await;
        turn.map_err(|_| Failure::NoAnswer(limit.length()))
    }

    pub(crate) fn traces(&self) -> MutexGuard<'_, Traces> {
        // Nothing panics while it holds the lock.
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what an ask came to.
    pub(crate) fn note(&self, place: Option<&Place>, in_doubt: bool) {
        self.traces().in_doubt |= in_doubt;
        if let Some(place) = place {
            self.stands_at(place);
        }
    }

    /// Takes note of when the key was created, before it is known where it stands.
    pub(crate) fn note_put(
        &self,
        created: Result<i64, Failure>,
        in_doubt: bool,
    ) -> Result<i64, Failure> {
        let mut traces = self.traces();
        traces.in_doubt |= in_doubt;
        let created = created?;
        traces.created = Some(created);
        Ok(created)
    }

    pub(crate) fn stands_at(&self, place: &Place) {
        let mut traces = self.traces();
        traces.created = Some(place.created);
        traces.ahead = place.ahead.as_ref().map(|ahead| ahead.created);
        traces.is_granted |= place.ahead.is_none();
    }

    /// Who is ahead, as of the last look, and how soon to look again.
    pub(crate) fn looks(&self) -> (Option<i64>, Haste) {
        let mut traces = self.traces();
        match std::mem::take(&mut traces.looks_again) {
            true => (traces.ahead, Haste::AtOnce),
            false => (traces.ahead, Haste::WithOthers),
        }
    }

    /// Takes note that nobody is ahead any more.
    pub(crate) fn first(&self) {
        let mut traces = self.traces();
        (traces.ahead, traces.is_granted) = (None, true);
    }

    /// Takes note that the key is gone.
    pub(crate) fn displaced(&self) {
        let mut traces = self.traces();
        (traces.created, traces.ahead, traces.is_granted) = (None, None, false);
        if traces.lease.as_ref().is_some_and(|lease| lease.is_gone()) {
            traces.lease = None;
        }
    }

    /// Takes note of the lease that the key hangs on now.
    pub(crate) fn moves_to(&self, lease: Arc<Lease>) {
        let mut traces = self.traces();
        (traces.lease, traces.longer) = (Some(lease), None);
    }

    /// The lease of the claim.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.traces().lease.clone()
    }

    /// The key, if it was answered that there is one.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let traces = self.traces();
        let (lease, created) = (traces.lease.clone()?, traces.created?);
        Some(Standing { key: Arc::clone(&traces.key), created, lease })
    }

    /// Chooses the key to ask for with this lease, which no other claim has; so no other has that
    /// key.
    pub(crate) fn asks_with(&self, lease: &Lease) -> Arc<str> {
        let key = self.queue.key(lease.id());
        self.traces().key = Arc::clone(&key);
        key
    }

    /// Whether the lease that the key was last known to hang on, if any, is as long as is wished.
    pub(crate) fn is_enough_for(&self, claim: &Claim) -> bool {
        self.traces().lease.as_ref().is_none_or(|lease| lease.ttl() >= claim.ttl())
    }

    /// What the lease is good for, or that which the key may hang on instead, whichever is less.
    pub(crate) fn vouch(&self) -> Option<Vouch> {
        let traces = self.traces();
        let [lease, longer] = [&traces.lease, &traces.longer]
            .map(|lease| lease.as_ref().filter(|lease| !lease.is_gone()));
        let least = iter::once(lease?).chain(longer).min_by_key(|it| it.since() + it.ttl())?;
        Some(Vouch::Lease { since: least.since(), ttl: least.ttl() })
    }

    /// The grant of a claim that is first.
    pub(crate) fn grant(&self) -> Option<Result<Grant, DriverError>> {
        let created = self.traces().created?;
        let vouch = self.vouch()?;
        Some(match FencingToken::try_from(created) {
            Ok(token) => Ok(Grant::new().token(token).vouch(vouch)),
            Err(_) => Err(Failure::Foreign("a revision that is not positive").of_a_request()),
        })
    }
}
