//! Who waits in this process, and what each was told.

use std::collections::HashMap;
#[cfg(feature = "mysql")]
use std::collections::HashSet;
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
    /// The locks of which the server has told this process, and has not been asked to tell again.
    #[cfg(feature = "mysql")]
    pub(super) told: HashSet<String>,
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
    /// Its place in the queue, if it has one: the numbers rise in the order of arrival.
    #[cfg(feature = "mysql")]
    pub(super) place: Option<i64>,
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

    /// The news of `owner`, if that one listens.
    pub(super) fn mailbox(&mut self, name: &LockName, owner: OwnerId) -> Option<&mut Mailbox> {
        // Mostly nobody waits for anything.
        if self.by_lock.is_empty() {
            return None;
        }
        self.by_lock.get_mut(&key(name))?.get_mut(&owner)
    }

    pub(super) fn remove(&mut self, key: &str, owner: OwnerId) {
        let Some(mailboxes) = self.by_lock.get_mut(key) else { return };
        mailboxes.remove(&owner);
        if mailboxes.is_empty() {
            self.by_lock.remove(key);
            #[cfg(feature = "mysql")]
            self.told.remove(key);
            self.left = Some(Instant::now());
        }
        #[cfg(feature = "mysql")]
        self.pass_on(key);
    }

    /// Has a waiter for a lock that this process was told of ask again. Whoever has asked has the
    /// server tell this process again, so it is not for all of them to ask: of those who have places
    /// only the first can have the lock, and the second is there to ask in any case, unless it
    /// relies on the first.
    #[cfg(feature = "mysql")]
    fn tell(&mut self, key: &str) {
        let Some(mailboxes) = self.by_lock.get_mut(key) else { return };
        let places = mailboxes.values().filter_map(|mailbox| mailbox.place);
        let [_, second] = places.fold([i64::MAX; 2], |[first, second], place| {
            let (least, other) = (first.min(place), first.max(place));
            [least, second.min(other)]
        });
        mailboxes
            .values_mut()
            .filter(|mailbox| mailbox.place.is_none_or(|place| place <= second))
            .for_each(Mailbox::ask_again);
        self.told.insert(key.into());
    }

    /// If nobody is left of those who were told, and none of them had the server tell this process
    /// again, has others do so.
    #[cfg(feature = "mysql")]
    fn pass_on(&mut self, key: &str) {
        // Those who wait are many, and mostly there is nothing to pass on.
        if !self.told.contains(key) {
            return;
        }
        let is_told = |mailbox: &Mailbox| mailbox.listing == Listing::Told;
        let mailboxes = self.by_lock.get(key);
        if !mailboxes.is_some_and(|mailboxes| mailboxes.values().any(is_told)) {
            self.tell(key);
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

    /// Notes that the subscription stands.
    pub(super) fn stand(&self) {
        self.waiters().are_told = true;
        self.rouse();
    }

    /// Notes that the subscription no longer stands; returns whether it did.
    pub(super) fn fall(&self) -> bool {
        std::mem::take(&mut self.waiters().are_told)
    }

    /// Notes that the subscription no longer stands, if nobody has listened for a while; returns
    /// whether that is so.
    pub(super) fn fall_if_idle(&self) -> bool {
        let mut waiters = self.waiters();
        let is_idle =
            waiters.by_lock.is_empty() && waiters.left.is_none_or(|left| left.elapsed() >= IDLE);
        waiters.are_told &= !is_idle;
        is_idle
    }

    /// Has all waiters ask again.
    pub(super) fn rouse(&self) {
        let mut waiters = self.waiters();
        waiters.by_lock.values_mut().flat_map(HashMap::values_mut).for_each(Mailbox::ask_again);
    }

    /// Tells the waiters for the lock with this namespace and name; returns whether there are any.
    pub(crate) fn deliver(&self, namespace: &str, name: &str, news: News) -> bool {
        let (mut waiters, key) = (self.waiters(), key_of(namespace, name));
        match news {
            #[cfg(feature = "postgres")]
            News::Granted(owner, token) => {
                let mailboxes = waiters.by_lock.get_mut(&key);
                if let Some(mailbox) = mailboxes.and_then(|mailboxes| mailboxes.get_mut(&owner)) {
                    mailbox.granted = Some(token);
                    mailbox.arrival.notify_one();
                }
            }
            // It may not be the one that the server has heard of.
            #[cfg(feature = "mysql")]
            News::Free => waiters.tell(&key),
            #[cfg(feature = "postgres")]
            News::Released => {
                let mailboxes = waiters.by_lock.get_mut(&key).into_iter();
                mailboxes.flat_map(HashMap::values_mut).for_each(Mailbox::freed);
            }
        }
        waiters.by_lock.contains_key(&key)
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
    /// That is known only if all others who wait here for that lock have places behind it.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_told(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = self.waiters();
        let Some(mailboxes) = waiters.by_lock.get(&key(name)) else { return false };
        let Some(own) = mailboxes.get(&owner) else { return false };
        waiters.are_told
            && own.listing == Listing::Told
            && mailboxes.iter().all(|(other, mailbox)| {
                let places = own.place.zip(mailbox.place);
                *other == owner || places.is_some_and(|(own, other)| own < other)
            })
    }

    /// Whether somebody who waits here for the lock has a place before that of `owner`.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_behind_another(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = self.waiters();
        let Some(mailboxes) = waiters.by_lock.get(&key(name)) else { return false };
        let own = mailboxes.get(&owner).and_then(|mailbox| mailbox.place);
        let is_before =
            |mailbox: &Mailbox| mailbox.place.zip(own).is_some_and(|(it, own)| it < own);
        mailboxes.values().any(is_before)
    }

    /// Has waiters ask again if all of them wait for one lock, and returns the [key] of that
    /// lock. Otherwise does nothing.
    #[cfg(feature = "mysql")]
    pub(crate) fn deliver_to_those_of_one(&self) -> Option<String> {
        let mut waiters = self.waiters();
        let mut locks = waiters.by_lock.keys();
        let (Some(key), None) = (locks.next().cloned(), locks.next()) else { return None };
        waiters.tell(&key);
        Some(key)
    }

    /// Whether waiters for the lock with this [key] were told of it, and the server has not been
    /// asked to tell this process again.
    #[cfg(feature = "mysql")]
    pub(crate) fn was_told(&self, key: &str) -> bool {
        self.waiters().told.contains(key)
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
        assert_eq!(board.deliver_to_those_of_one(), None);
        let (one, other) = (name("one"), name("other"));
        let owners = [OwnerId::random(), OwnerId::random()];
        for owner in owners {
            board.waiters().of(&one).insert(owner, Mailbox::default());
        }
        assert_eq!(board.deliver_to_those_of_one(), Some(key(&one)));
        for owner in owners {
            let told = board.waiters().of(&one).get_mut(&owner).unwrap().take();
            assert_eq!(told, Some(Change::AskAgain));
        }
        board.waiters().of(&other).insert(OwnerId::random(), Mailbox::default());
        assert_eq!(board.deliver_to_those_of_one(), None);
        assert_eq!(board.waiters().of(&one).get_mut(&owners[0]).unwrap().take(), None);
    }

    /// The first has its turn, and the second has the server tell this process again.
    #[cfg(feature = "mysql")]
    #[test]
    fn of_those_who_have_places_two_are_told_and_one_of_them_passes_it_on() {
        let (board, lock) = (Board::default(), name("one"));
        let [first, second, third, fourth] = [(); 4].map(|()| OwnerId::random());
        let listing = Listing::Until(Instant::now());
        let listed = |place| Mailbox { listing, place: Some(place), ..Mailbox::default() };
        for (owner, place) in [(fourth, 7), (second, 5), (first, 1), (third, 6)] {
            board.waiters().of(&lock).insert(owner, listed(place));
        }
        board.waiters().are_told = true;
        let are_told = || {
            let mut waiters = board.waiters();
            let mailboxes = waiters.of(&lock);
            let mut is_told = |owner| mailboxes.get_mut(&owner)?.take().map(|_| owner);
            [first, second, third, fourth].into_iter().filter_map(&mut is_told).collect::<Vec<_>>()
        };
        assert!(board.deliver("lockkit", "one", News::Free));
        assert_eq!(are_told(), [first, second]);
        assert!(board.is_told(&lock, first) && !board.is_told(&lock, second));
        assert!(!board.is_behind_another(&lock, first) && board.is_behind_another(&lock, second));

        // The second is there to ask.
        board.waiters().remove(&key(&lock), first);
        assert_eq!(are_told(), []);
        // It gives up before it has asked.
        board.waiters().remove(&key(&lock), second);
        assert_eq!(are_told(), [third, fourth]);
        // It has had the server tell this process again.
        board.waiters().of(&lock).get_mut(&fourth).unwrap().listing = listing;
        board.waiters().told.clear();
        board.waiters().remove(&key(&lock), third);
        assert_eq!(are_told(), []);
    }

    /// Others may have places before it; and a claim that is told that news is gone has to look.
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
