//! Who waits in this process, and what each was told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Change, Grant, OwnerId};
use lockkit_core::{FencingToken, LockName};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::IDLE;

/// Where news is put up for the waiters of this process.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(super) waiters: Mutex<Waiters>,
    /// Notified when somebody has come to wait.
    pub(super) wanted: Notify,
}

/// Who listens.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Whether the server has confirmed the subscription.
    pub(super) are_told: bool,
    pub(super) by_lock: HashMap<String, HashMap<OwnerId, Mailbox>>,
    /// When the last of them left.
    pub(super) left: Option<Instant>,
}

/// The news of one waiter.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Who held the lock when the owner's last ask was refused, if that ask kept its place.
    pub(super) holder: Option<FencingToken>,
    /// When that hold ends, of which there is no news.
    pub(super) ask_at: Option<Instant>,
    pub(super) granted: Option<FencingToken>,
    pub(super) freed: bool,
    pub(super) ask_again: bool,
    #[cfg(feature = "mysql")]
    pub(super) listing: Listing,
    pub(super) arrival: Arc<Notify>,
}

/// What the server knows of a waiter, where it has to be asked to tell the waiter.
#[cfg(feature = "mysql")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Listing {
    #[default]
    Never,
    /// The server will tell the waiter, at least until then.
    Until(Instant),
    /// The server has told the waiter, and does not do so again.
    Told,
}

impl Mailbox {
    /// What the server was asked to tell may have been told, and is not told again.
    pub(super) fn ask_again(&mut self) {
        #[cfg(feature = "mysql")]
        if self.listing != Listing::Never {
            self.listing = Listing::Told;
        }
        self.ask_again = true;
        self.arrival.notify_one();
    }

    #[cfg(feature = "postgres")]
    pub(super) fn freed(&mut self) {
        self.freed = true;
        self.arrival.notify_one();
    }

    #[cfg(feature = "postgres")]
    pub(super) fn is_to_ask(&self) -> bool {
        let is_due = self.ask_at.is_some_and(|end| end <= Instant::now());
        is_due || self.ask_again || self.freed || self.granted.is_some()
    }

    pub(super) fn take(&mut self) -> Option<Change> {
        let freed = std::mem::take(&mut self.freed).then_some(Change::Freed);
        let hint = std::mem::take(&mut self.ask_again).then_some(Change::AskAgain).or(freed);
        match (self.granted.take(), self.holder) {
            (None, _) => hint,
            (Some(token), Some(holder)) if token > holder => {
                Some(Change::Granted(Grant::new().token(token)))
            }
            // That grant was over before the last ask was refused: this message was late.
            (Some(_), Some(_)) => hint,
            // The last ask was not answered or kept no place, so nothing tells how long the grant
            // is good. Asking does.
            (Some(_), None) => Some(Change::AskAgain),
        }
    }
}

impl Waiters {
    pub(super) fn of(&mut self, name: &LockName) -> &mut HashMap<OwnerId, Mailbox> {
        self.by_lock.entry(key(name)).or_default()
    }

    pub(super) fn remove(&mut self, key: &str, owner: OwnerId) {
        let Some(mailboxes) = self.by_lock.get_mut(key) else { return };
        mailboxes.remove(&owner);
        if mailboxes.is_empty() {
            self.by_lock.remove(key);
            self.left = Some(Instant::now());
        }
    }
}

impl Board {
    pub(super) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        // Nothing panics while it holds the lock.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters().by_lock.is_empty()
    }

    /// Whether nobody has listened for a while.
    pub(super) fn is_idle(&self) -> bool {
        let waiters = self.waiters();
        waiters.by_lock.is_empty() && waiters.left.is_none_or(|left| left.elapsed() >= IDLE)
    }

    /// Notes that the subscription stands.
    pub(super) fn stand(&self) {
        self.waiters().are_told = true;
        self.rouse();
    }

    /// Notes that the subscription no longer stands; returns whether it did.
    pub(super) fn fall(&self) -> bool {
        std::mem::take(&mut self.waiters().are_told)
    }

    /// Has all waiters ask again.
    pub(super) fn rouse(&self) {
        let mut waiters = self.waiters();
        waiters.by_lock.values_mut().flat_map(HashMap::values_mut).for_each(Mailbox::ask_again);
    }

    /// Tells the waiters for the lock with this namespace and name; returns whether there are any.
    pub(crate) fn deliver(&self, namespace: &str, name: &str, news: News) -> bool {
        let mut waiters = self.waiters();
        let mailboxes = waiters.by_lock.get_mut(&key_of(namespace, name));
        let Some(mailboxes) = mailboxes else { return false };
        match news {
            #[cfg(feature = "postgres")]
            News::Granted(owner, token) => {
                if let Some(mailbox) = mailboxes.get_mut(&owner) {
                    mailbox.granted = Some(token);
                    mailbox.arrival.notify_one();
                }
            }
            // Only one of them listens at a time, and it may not be the one that the server has
            // heard of.
            #[cfg(feature = "mysql")]
            News::Free => mailboxes.values_mut().for_each(Mailbox::ask_again),
            #[cfg(feature = "postgres")]
            News::Released => mailboxes.values_mut().for_each(Mailbox::freed),
        }
        true
    }

    /// Tells the waiters for a lock of that name, in whatever namespace, that it was let go.
    #[cfg(feature = "postgres")]
    pub(crate) fn free_in_all_namespaces(&self, name: &str) {
        let is_meant = |key: &str| key.split_once('\n').is_some_and(|(_, awaited)| awaited == name);
        let mut waiters = self.waiters();
        let meant = waiters.by_lock.iter_mut().filter(|(key, _)| is_meant(key));
        meant.flat_map(|(_, mailboxes)| mailboxes.values_mut()).for_each(Mailbox::freed);
    }

    /// Whether anybody waits for the lock.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_awaited(&self, name: &LockName) -> bool {
        self.waiters().by_lock.contains_key(&key(name))
    }

    /// Whether it is `owner` that the server has told of a release and that has not asked since.
    /// That is known only if nobody else waits here for that lock.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_told(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = self.waiters();
        let Some(mailboxes) = waiters.by_lock.get(&key(name)) else { return false };
        let is_told = mailboxes.get(&owner).is_some_and(|mailbox| mailbox.listing == Listing::Told);
        waiters.are_told && is_told && mailboxes.len() == 1
    }

    /// Has the waiters ask again if all of them wait for one lock, and returns the [key] of that
    /// lock. Otherwise does nothing.
    #[cfg(feature = "mysql")]
    pub(crate) fn deliver_to_all_of_one(&self) -> Option<String> {
        let mut waiters = self.waiters();
        let mut locks = waiters.by_lock.iter_mut();
        let (Some((key, mailboxes)), None) = (locks.next(), locks.next()) else { return None };
        mailboxes.values_mut().for_each(Mailbox::ask_again);
        Some(key.clone())
    }
}

pub(crate) fn key(name: &LockName) -> String {
    key_of(name.namespace().as_str(), name.as_str())
}

/// Neither part has a line break in it.
fn key_of(namespace: &str, name: &str) -> String {
    [namespace, name].join("\n")
}

/// What is told of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It was granted to that owner, which need not ask.
    #[cfg(feature = "postgres")]
    Granted(OwnerId, FencingToken),
    /// Of the waiters in no order, one of this process is to try.
    #[cfg(feature = "mysql")]
    Free,
    /// All waiters are told.
    #[cfg(feature = "postgres")]
    Released,
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "mysql")]
    use lockkit_core::Namespace;

    use super::*;

    #[cfg(feature = "postgres")]
    #[tokio::test(start_paused = true)]
    async fn who_is_to_ask_at_the_end_of_a_hold_does_so() {
        use tokio::time::{Duration, advance};
        const LEFT: Duration = Duration::from_secs(1);
        let mailbox = Mailbox { ask_at: Some(Instant::now() + LEFT), ..Mailbox::default() };
        assert!(!mailbox.is_to_ask());
        advance(LEFT).await;
        assert!(mailbox.is_to_ask());
        assert!(!Mailbox { ask_at: None, ..mailbox }.is_to_ask(), "another one does");
    }

    #[cfg(feature = "mysql")]
    fn name(name: &str) -> LockName {
        LockName::new(&Namespace::default(), name).unwrap()
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn who_is_meant_is_known_where_all_wait_for_one_lock() {
        let board = Board::default();
        assert_eq!(board.deliver_to_all_of_one(), None);
        let (one, other) = (name("one"), name("other"));
        let owners = [OwnerId::random(), OwnerId::random()];
        for owner in owners {
            board.waiters().of(&one).insert(owner, Mailbox::default());
        }
        assert_eq!(board.deliver_to_all_of_one(), Some(key(&one)));
        for owner in owners {
            let told = board.waiters().of(&one).get_mut(&owner).unwrap().take();
            assert_eq!(told, Some(Change::AskAgain));
        }
        board.waiters().of(&other).insert(OwnerId::random(), Mailbox::default());
        assert_eq!(board.deliver_to_all_of_one(), None);
        assert_eq!(board.waiters().of(&one).get_mut(&owners[0]).unwrap().take(), None);
    }

    /// Several may have places behind others; and a claim that is told that news is gone has to
    /// look.
    #[cfg(feature = "mysql")]
    #[test]
    fn only_who_is_alone_in_being_told_takes_its_turn_without_a_look() {
        let (board, lock) = (Board::default(), name("one"));
        let [first, second] = [OwnerId::random(), OwnerId::random()];
        let listed = || Mailbox { listing: Listing::Until(Instant::now()), ..Mailbox::default() };
        board.waiters().of(&lock).insert(first, listed());
        board.rouse();
        assert!(!board.is_told(&lock, first), "news do not stand");
        board.stand();
        assert!(board.is_told(&lock, first));
        assert!(!board.is_told(&lock, second) && !board.is_told(&name("other"), first));
        board.waiters().of(&lock).insert(second, listed());
        assert!(!board.is_told(&lock, first));
    }
}
