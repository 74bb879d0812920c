//! Wakes the waiters of this process when a lock may have become free.
//!
//! All drivers of the process that have the same file open share one hub. A release wakes one
//! waiter: whose place is the first one, or else who has waited longest. A waiter that was woken
//! and goes away without the lock releases its claim too, which wakes the next.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use lockkit_core::LockName;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{Claim, OwnerId};
use tokio::sync::Notify;

/// The waiters of one driver.
#[derive(Debug)]
pub(super) struct Wakeups {
    hub: Arc<Hub>,
    /// What keeps the mailboxes alive: they are gone with their driver.
    own: Mutex<HashMap<OwnerId, Arc<Notify>>>,
}

/// The waiters of all drivers on one file, those of each lock in order of arrival.
#[derive(Debug, Default)]
struct Hub(Mutex<HashMap<LockName, Queue>>);

type Queue = VecDeque<(OwnerId, Weak<Notify>)>;

impl Wakeups {
    /// Joins the other drivers on this file.
    pub(super) fn on(file: FileId) -> Self {
        static HUBS: LazyLock<Mutex<HashMap<FileId, Weak<Hub>>>> = LazyLock::new(Mutex::default);
        let mut hubs = guard(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let hub = hubs.get(&file).and_then(Weak::upgrade).unwrap_or_else(|| {
            let hub = Arc::new(Hub::default());
            hubs.insert(file, Arc::downgrade(&hub));
            hub
        });
        Self { hub, own: Mutex::default() }
    }

    /// Gives the claim a mailbox; whether it had one already.
    pub(super) fn listen(&self, claim: &Claim) -> bool {
        let mut own = guard(&self.own);
        if own.contains_key(&claim.owner()) {
            return true;
        }
        let mailbox = Arc::new(Notify::new());
        let mut waiters = guard(&self.hub.0);
        let queue = waiters.entry(claim.name().clone()).or_default();
        queue.push_back((claim.owner(), Arc::downgrade(&mailbox)));
        own.insert(claim.owner(), mailbox);
        false
    }

    /// The claim's mailbox, which keeps one piece of news until it is fetched.
    pub(super) fn of(&self, claim: &Claim) -> Option<Arc<Notify>> {
        guard(&self.own).get(&claim.owner()).cloned()
    }

    /// Takes the claim's mailbox away.
    pub(super) fn leave(&self, claim: &Claim) {
        if guard(&self.own).remove(&claim.owner()).is_none() {
            return;
        }
        let mut waiters = guard(&self.hub.0);
        if let Some(queue) = waiters.get_mut(claim.name()) {
            queue.retain(|(owner, _)| *owner != claim.owner());
            if queue.is_empty() {
                waiters.remove(claim.name());
            }
        }
    }

    /// Wakes the owner of the first place, if it waits in this process; if there is no place, who
    /// has waited here longest.
    pub(super) fn wake(&self, name: &LockName, first_place: Option<OwnerId>) {
        let waiters = guard(&self.hub.0);
        let mut alive = waiters
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|(owner, mailbox)| mailbox.upgrade().map(|mailbox| (*owner, mailbox)));
        let woken = match first_place {
            Some(first) => alive.find(|(owner, _)| *owner == first),
            None => alive.next(),
        };
        if let Some((_, mailbox)) = woken {
            mailbox.notify_one();
        }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        guard(&self.own).clear();
        guard(&self.hub.0).retain(|_, queue| {
            queue.retain(|(_, mailbox)| mailbox.strong_count() > 0);
            !queue.is_empty()
        });
    }
}

/// Every change of these maps is one call; a panic elsewhere leaves them whole.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
