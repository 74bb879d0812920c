//! Wakes the waiters of this process when a lock may have become free.
//!
//! All drivers of the process that have the same file open share one hub. A release wakes one
//! waiter: the one with the first place, or else one that listens. Of a locker's waiters, only the
//! one whose turn it is listens. A waiter that was woken and goes away without the lock releases
//! its claim too, which wakes the next.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use lockkit_core::LockName;
use lockkit_core::driver::filesystem::FileId;
use lockkit_core::driver::{Claim, OwnerId};
use tokio::sync::Notify;

/// The waiters of one driver.
#[derive(Debug)]
pub(super) struct Wakeups {
    hub: Arc<Hub>,
    /// What keeps the mailboxes alive, with their turns: they go with their driver.
    own: Mutex<HashMap<OwnerId, (u64, Arc<Mailbox>)>>,
}

/// The waiters of all drivers on one file, those of each lock in the order in which they asked
/// last.
#[derive(Debug, Default)]
struct Hub(Mutex<HashMap<LockName, Queue>>);

/// By turn, which rises with each ask.
type Queue = BTreeMap<u64, (OwnerId, Weak<Mailbox>)>;

/// The news of one waiter.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Keeps one piece of news until it is fetched.
    news: Notify,
    listeners: AtomicUsize,
}

impl Mailbox {
    /// Returns when there is news.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when this returns.
    pub(super) async fn changed(&self) {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        let _listens = Listens(self);
        self.news.notified().await;
    }
}

struct Listens<'a>(&'a Mailbox);

impl Drop for Listens<'_> {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

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

    /// Gives a mailbox to a claim that is about to ask; returns whether it had one already.
    pub(super) fn listen(&self, claim: &Claim) -> bool {
        let (mut own, owner) = (guard(&self.own), claim.owner());
        let before = own.remove(&owner);
        let had_one = before.is_some();
        let mut waiters = guard(&self.hub.0);
        let queue = waiters.entry(claim.name().clone()).or_default();
        let turn = queue.last_key_value().map_or(0, |(last, _)| last + 1);
        let mailbox = before.map_or_else(Arc::default, |(turn, mailbox)| {
            queue.remove(&turn);
            mailbox
        });
        queue.insert(turn, (owner, Arc::downgrade(&mailbox)));
        own.insert(owner, (turn, mailbox));
        had_one
    }

    /// The claim's mailbox.
    pub(super) fn of(&self, claim: &Claim) -> Option<Arc<Mailbox>> {
        guard(&self.own).get(&claim.owner()).map(|(_, mailbox)| mailbox.clone())
    }

    /// Takes the claim's mailbox away.
    pub(super) fn leave(&self, claim: &Claim) {
        let Some((turn, _)) = guard(&self.own).remove(&claim.owner()) else { return };
        let mut waiters = guard(&self.hub.0);
        if let Some(queue) = waiters.get_mut(claim.name()) {
            queue.remove(&turn);
            if queue.is_empty() {
                waiters.remove(claim.name());
            }
        }
    }

    /// Wakes the owner of the first place, if it waits in this process. If there is no place, wakes
    /// the listener whose last ask is the longest ago or, if none listens, the waiter that asked
    /// last: it is about to listen.
    pub(super) fn wake(&self, name: &LockName, first_place: Option<OwnerId>) {
        let waiters = guard(&self.hub.0);
        let Some(queue) = waiters.get(name) else { return };
        let alive = || {
            let is_meant = |owner: &OwnerId| first_place.is_none_or(|first| *owner == first);
            queue
                .values()
                .filter(move |(owner, _)| is_meant(owner))
                .filter_map(|(_, mailbox)| mailbox.upgrade())
        };
        let listens = |mailbox: &Arc<Mailbox>| mailbox.listeners.load(Ordering::Relaxed) > 0;
        if let Some(mailbox) = alive().find(listens).or_else(|| alive().next_back()) {
            mailbox.news.notify_one();
        }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        guard(&self.own).clear();
        guard(&self.hub.0).retain(|_, queue| {
            queue.retain(|_, (_, mailbox)| mailbox.strong_count() > 0);
            !queue.is_empty()
        });
    }
}

/// Every change of these maps is one call; a panic elsewhere leaves them whole.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
