use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use lockkit_core::driver::{Instant, OwnerId, Release, Vouch};
use lockkit_core::{FencingToken, LockName};

/// For how long, at most, a hold that ended with its session is still believed in, where the server
/// has seen the session's end and we have not: nobody reads what comes from a server that was asked
/// nothing.
pub(super) const LONGEST_BELIEF: Duration = Duration::from_secs(1);

/// What this process knows of its session and of who holds what by it.
///
/// The registry stands in front of the server, which would let one session in twice; and two names
/// that come to the same key exclude each other rather than both getting in.
#[derive(Debug)]
pub(super) struct Registry<K> {
    life: Option<Life>,
    holds: HashMap<K, Hold>,
    /// The owners whose hold ended with a session, until they have released, or were refused.
    lost: HashSet<OwnerId>,
    /// The owners that may have a lock by a session that the server may not know to be over.
    in_doubt: HashSet<OwnerId>,
    /// How releases went that nobody waited for any more, until they are repeated.
    released: HashMap<OwnerId, Release>,
}

/// How long the session is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// When the last statement that was answered was sent.
    pub(super) since: Instant,
    /// When the last answered statement that asked whether the server takes writes was sent.
    pub(super) proven: Instant,
    /// The time-out that the server has set.
    pub(super) ttl: Duration,
}

impl Life {
    /// When the server may have ended the session, for all that is known.
    pub(super) fn end(self) -> Instant {
        self.since + self.ttl
    }

    /// When the session is to be refreshed, so that holds that are renewed at a third of the lease
    /// find it fresh.
    pub(super) fn stale(self) -> Instant {
        self.since + self.ttl / 4
    }

    /// When to ask again whether the server takes writes, if nothing is held: a claim that is
    /// refused writes nothing, and does not notice.
    fn unproven(self) -> Instant {
        self.proven + self.ttl / 4
    }

    pub(super) fn vouch(self) -> Vouch {
        Vouch::Lease { since: self.since, ttl: self.ttl }
    }
}

#[derive(Debug)]
struct Hold {
    name: LockName,
    owner: OwnerId,
    token: FencingToken,
}

/// How an ask went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted { token: FencingToken, vouch: Vouch },
    Taken,
}

impl<K: Clone + Eq + Hash> Registry<K> {
    pub(super) fn new() -> Self {
        let (holds, released) = (HashMap::new(), HashMap::new());
        let (lost, in_doubt) = (HashSet::new(), HashSet::new());
        Self { life: None, holds, lost, in_doubt, released }
    }

    pub(super) fn life(&self) -> Option<Life> {
        self.life
    }

    /// When to send something, if there is a session.
    pub(super) fn next_beat(&self) -> Option<Instant> {
        let life = self.life?;
        Some(match self.holds.is_empty() {
            true => life.unproven(),
            false => life.unproven().min(life.proven + LONGEST_BELIEF),
        })
    }

    /// Notes that there is a session.
    pub(super) fn begin(&mut self, life: Life) {
        self.life = Some(life);
    }

    /// Notes that the server knows all earlier sessions to be over.
    pub(super) fn settle(&mut self) {
        self.in_doubt.clear();
    }

    /// Notes that the session ended while it was asked for a lock, or to unlock it, and did not say
    /// what became of that.
    pub(super) fn doubt(&mut self, owner: OwnerId) {
        self.in_doubt.insert(owner);
    }

    pub(super) fn is_in_doubt(&self, owner: OwnerId) -> bool {
        self.in_doubt.contains(&owner)
    }

    /// Notes that a statement that was sent then was answered.
    pub(super) fn answered(&mut self, sent: Instant) {
        if let Some(life) = &mut self.life {
            life.since = life.since.max(sent);
        }
    }

    /// Notes that a heartbeat that was sent then was answered.
    pub(super) fn proven(&mut self, sent: Instant) {
        if let Some(life) = &mut self.life {
            life.proven = life.proven.max(sent);
        }
    }

    /// Notes that the session is over and all its locks are lost. Returns which.
    pub(super) fn end(&mut self) -> Vec<LockName> {
        self.life = None;
        let holds = self.holds.drain().map(|(_, hold)| {
            self.lost.insert(hold.owner);
            hold.name
        });
        holds.collect()
    }

    /// The answer to an ask, if it takes no server to give it; `None` if the session holds nothing
    /// there.
    pub(super) fn known(&self, key: &K, owner: OwnerId) -> Option<Outcome> {
        let (hold, life) = (self.holds.get(key)?, self.life?);
        Some(match hold.owner == owner {
            true => Outcome::Granted { token: hold.token, vouch: life.vouch() },
            false => Outcome::Taken,
        })
    }

    pub(super) fn granted(&mut self, key: K, name: LockName, owner: OwnerId, token: FencingToken) {
        self.lost.remove(&owner);
        self.released.remove(&owner);
        self.holds.insert(key, Hold { name, owner, token });
    }

    pub(super) fn holds(&self, key: &K, owner: OwnerId) -> bool {
        self.holds.get(key).is_some_and(|hold| hold.owner == owner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// A lock that is held for an owner other than this one.
    pub(super) fn stray(&self, owner: OwnerId) -> Option<K> {
        self.holds.iter().find(|(_, hold)| hold.owner != owner).map(|(key, _)| key.clone())
    }

    pub(super) fn has_lost(&self, owner: OwnerId) -> bool {
        self.lost.contains(&owner)
    }

    /// Notes that the owner knows, from the refusal of an ask, that it holds nothing.
    pub(super) fn forget_loss(&mut self, owner: OwnerId) {
        self.lost.remove(&owner);
    }

    /// Notes that the server no longer holds it for us.
    pub(super) fn let_go(&mut self, key: &K) {
        self.holds.remove(key);
    }

    /// Notes how the release went whose answer came when nobody was waiting for it.
    pub(super) fn note_release(&mut self, owner: OwnerId, release: Release) {
        self.released.insert(owner, release);
    }

    /// Forgets the owner, which holds nothing, and returns how its release went.
    pub(super) fn forget(&mut self, owner: OwnerId) -> Release {
        self.lost.remove(&owner);
        self.released.remove(&owner).unwrap_or(Release::NotHeld)
    }
}
