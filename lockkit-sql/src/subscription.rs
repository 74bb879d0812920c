//! What the waiters of one driver hear of others, over a connection that they share.

use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Backoff, Change, OwnerId};
use lockkit_core::{FencingToken, LockName};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::seats::Failing;

mod board;

#[cfg(feature = "mysql")]
pub(crate) use board::Listing;
use board::Mailbox;
pub(crate) use board::{Board, News, key};

/// The connection is given up once nobody has listened for this long. Where somebody waits now and
/// then, it is worth keeping.
const IDLE: Duration = Duration::from_secs(15);
/// How long to leave a server alone that tells no news.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How news comes from a server.
pub(crate) trait Wire: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    type Listener: Listener<Failure = Self::Failure>;
    type Failure: Failing;

    /// Opens a connection on which news arrives, or gives up by itself.
    fn listen(&self) -> impl Future<Output = Result<Self::Listener, Self::Failure>> + Send;
}

/// A connection on which news arrives.
pub(crate) trait Listener: Send {
    type Failure;

    /// Delivers what arrives. Returns every few seconds, having made sure that the other end is
    /// still there: a peer that has vanished says nothing.
    fn hear(&mut self, board: &Board) -> impl Future<Output = Result<(), Self::Failure>> + Send;

    /// Says goodbye.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// The connection for news, shared by all waiters, for all locks.
///
/// It is made when the first waiter needs it, and given up some time after the last has gone.
/// Whenever the subscription comes to stand, the waiters are told to ask again, since whatever was
/// told before that is lost.
#[derive(Debug)]
pub(crate) struct Subscription {
    board: Arc<Board>,
    supervisor: AbortOnDropHandle<()>,
}

impl Subscription {
    pub(crate) fn new(wire: impl Wire) -> Self {
        let board = Arc::new(Board::default());
        let supervisor = tokio::spawn(supervise(wire, board.clone()));
        Self { board, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Listens for `owner` from now on, provided that the subscription stands. To be called before
    /// an ask.
    pub(crate) fn join(&self, name: &LockName, owner: OwnerId) -> Joined {
        let mut waiters = self.board.waiters();
        if !waiters.are_told {
            return Joined::NotYet;
        }
        match waiters.of(name).entry(owner) {
            Entry::Occupied(mut mailbox) => {
                let mailbox = mailbox.get_mut();
                // What the last answer said does not apply to this ask, whose own answer may be
                // lost.
                mailbox.holder = None;
                // The ask makes up for what was heard before it.
                (mailbox.ask_again, mailbox.freed) = (false, false);
                Joined::Before
            }
            Entry::Vacant(mailbox) => {
                mailbox.insert(Mailbox::default());
                Joined::Now
            }
        }
    }

    /// Listens for `owner`, whose ask was refused in favour of a holder with this token. There is a
    /// token only where grants are pushed at all and that ask has kept the place that they are for.
    /// `joined` is what [`join`](Self::join) returned before the ask.
    pub(crate) fn wait(
        &self,
        name: &LockName,
        owner: OwnerId,
        holder: Option<FencingToken>,
        joined: Joined,
    ) {
        let mut waiters = self.board.waiters();
        let are_told = waiters.are_told;
        let mailbox = waiters.of(name).entry(owner).or_default();
        (mailbox.holder, mailbox.ask_at) = (holder, None);
        // The subscription came to stand between the ask and now: something may have been missed.
        mailbox.ask_again |= are_told && joined == Joined::NotYet;
        drop(waiters);
        self.board.wanted.notify_one();
    }

    /// Whether the server will tell `owner` of a release, at least until then. To be called before
    /// an ask, which makes up for what was heard before it.
    #[cfg(feature = "mysql")]
    pub(crate) fn is_listed(&self, name: &LockName, owner: OwnerId, until: Instant) -> bool {
        let mut waiters = self.board.waiters();
        let are_told = waiters.are_told;
        let Some(mailbox) = waiters.mailbox(name, owner) else { return false };
        (mailbox.ask_again, mailbox.freed) = (false, false);
        are_told && matches!(mailbox.listing, Listing::Until(end) if end > until)
    }

    /// What the server knows of `owner`, if that one listens.
    #[cfg(feature = "mysql")]
    pub(crate) fn listing(&self, name: &LockName, owner: OwnerId) -> Option<Listing> {
        self.board.waiters().mailbox(name, owner).map(|mailbox| mailbox.listing)
    }

    /// Notes that the server will tell `owner` until then. The server is asked to do so only
    /// afterwards, since news may arrive before the server's answer. Returns whether this process
    /// was told of the lock, and has not had itself told again.
    #[cfg(feature = "mysql")]
    pub(crate) fn list(&self, name: &LockName, owner: OwnerId, until: Instant) -> bool {
        let mut waiters = self.board.waiters();
        let Some(mailbox) = waiters.mailbox(name, owner) else { return false };
        mailbox.listing = Listing::Until(until);
        waiters.told.remove(&key(name))
    }

    /// Notes that the server could not be asked to tell `owner`.
    #[cfg(feature = "mysql")]
    pub(crate) fn unlist(&self, name: &LockName, owner: OwnerId) {
        if let Some(mailbox) = self.board.waiters().mailbox(name, owner) {
            mailbox.listing = Listing::Told;
        }
    }

    /// Notes that `owner`, if it was told, leaves it to the claim before it to ask.
    #[cfg(feature = "mysql")]
    pub(crate) fn relies_on_another(&self, name: &LockName, owner: OwnerId) {
        if let Some(mailbox) = self.board.waiters().mailbox(name, owner)
            && mailbox.listing == Listing::Told
        {
            mailbox.listing = Listing::Never;
        }
    }

    /// Notes the number of the place of `owner` in the queue, if that one listens.
    #[cfg(feature = "mysql")]
    pub(crate) fn stand(&self, name: &LockName, owner: OwnerId, arrival: i64) {
        if let Some(mailbox) = self.board.waiters().mailbox(name, owner) {
            mailbox.place = Some(arrival);
        }
    }

    /// Where news is delivered.
    #[cfg(feature = "mysql")]
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    /// Notes when `owner` is to ask because the hold ends then, unless it is renewed; `None` if
    /// another claim will ask.
    #[cfg(feature = "postgres")]
    pub(crate) fn ask_at(&self, name: &LockName, owner: OwnerId, end: Option<Instant>) {
        if let Some(mailbox) = self.board.waiters().mailbox(name, owner) {
            mailbox.ask_at = end;
        }
    }

    /// Whether `owner`, which has been refused, will be told of what it waits for, has not been
    /// told anything yet, and has not reached the time at which it is to ask all the same.
    #[cfg(feature = "postgres")]
    pub(crate) fn relies(&self, name: &LockName, owner: OwnerId) -> bool {
        let mut waiters = self.board.waiters();
        let relies = |mailbox: &mut Mailbox| mailbox.holder.is_some() && !mailbox.is_to_ask();
        waiters.are_told && waiters.mailbox(name, owner).is_some_and(relies)
    }

    /// Tells the waiters of this process that the lock was let go.
    #[cfg(feature = "postgres")]
    pub(crate) fn tell(&self, name: &LockName) {
        if let Some(mailboxes) = self.board.waiters().by_lock.get_mut(&key(name)) {
            mailboxes.values_mut().for_each(Mailbox::freed);
        }
    }

    /// The same, where a name means one lock in all namespaces.
    #[cfg(feature = "postgres")]
    pub(crate) fn tell_in_all_namespaces(&self, name: &LockName) {
        self.board.free_in_all_namespaces(name.as_str());
    }

    /// Stops listening for `owner`.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId) {
        let mut waiters = self.board.waiters();
        // Mostly nobody waits for anything.
        if !waiters.by_lock.is_empty() {
            waiters.remove(&key(name), owner);
        }
    }

    /// The same for one that gives up. If it was the one to ask at the end of the hold, another is.
    #[cfg(feature = "postgres")]
    pub(crate) fn give_up(&self, name: &LockName, owner: OwnerId) {
        let mut waiters = self.board.waiters();
        let was_to_ask = waiters.mailbox(name, owner).is_some_and(|it| it.ask_at.is_some());
        let key = key(name);
        waiters.remove(&key, owner);
        if was_to_ask
            && let Some(others) = waiters.by_lock.get_mut(&key)
            && others.values().all(|other| other.ask_at.is_none())
            && let Some(next) = others.values_mut().find(|other| other.holder.is_some())
        {
            next.ask_again();
        }
    }

    /// The next news for `owner`; if it does not listen, there never is any.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when it is returned.
    pub(crate) async fn changed(&self, name: &LockName, owner: OwnerId) -> Change {
        let key = key(name);
        loop {
            let arrival = {
                let mut waiters = self.board.waiters();
                let mailboxes = waiters.by_lock.get_mut(&key);
                match mailboxes.and_then(|mailboxes| mailboxes.get_mut(&owner)) {
                    None => None,
                    Some(mailbox) => match mailbox.take() {
                        None => Some(mailbox.arrival.clone()),
                        Some(change) => {
                            if matches!(change, Change::Granted(_)) {
                                waiters.remove(&key, owner);
                            }
                            return change;
                        }
                    },
                }
            };
            match arrival {
                Some(arrival) => arrival.notified().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Ends the connection; returns whether there was one.
    pub(crate) fn close(&self) -> bool {
        self.supervisor.abort();
        self.board.waiters().are_told
    }
}

/// Whether news will arrive for an ask that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The owner listens already.
    Before,
    /// The owner listens from now on.
    Now,
    /// The subscription does not stand.
    NotYet,
}

/// Keeps a connection while somebody listens.
async fn supervise<W: Wire>(wire: W, board: Arc<Board>) {
    let mut backoff = Backoff::default();
    let mut stood_before = false;
    loop {
        while board.is_empty() {
            board.wanted.notified().await;
        }
        sleep(backoff.pause()).await;
        let began = Instant::now();
        let failure = listen(&wire, &board).await;
        let stood = board.fall();
        let is_lasting = failure.as_ref().is_err_and(Failing::is_lasting);
        // Waiters that rely on the subscription are told that they have to poll. Mostly, however,
        // it stands again at once, and they are told that instead.
        let stands_soon = stood && !is_lasting;
        if (stood || stood_before) && !stands_soon {
            board.rouse();
        }
        stood_before = stands_soon;
        let Err(failure) = failure else { continue };
        backoff.broke_after(began.elapsed());
        if is_lasting {
            tracing::warn!(endpoint = %wire, %failure, "the server tells no news; waiters poll");
            sleep(REFUSED_PAUSE).await;
        } else {
            tracing::debug!(endpoint = %wire, %failure, "no news for now; waiters poll");
        }
    }
}

/// Delivers news until the connection breaks or nobody listens any more.
async fn listen<W: Wire>(wire: &W, board: &Board) -> Result<(), W::Failure> {
    let mut listener = wire.listen().await?;
    board.stand();
    loop {
        listener.hear(board).await?;
        if board.fall_if_idle() {
            listener.close().await;
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use lockkit_core::Namespace;
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    use tokio::time::timeout;

    use super::*;

    /// It tells news for a second, and then no more.
    #[derive(Clone, Debug, Default)]
    struct Refused {
        has_listened: Arc<AtomicBool>,
    }

    impl fmt::Display for Refused {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("server")
        }
    }

    impl Wire for Refused {
        type Listener = Self;
        type Failure = io::Error;

        async fn listen(&self) -> io::Result<Self> {
            match self.has_listened.swap(true, Ordering::Relaxed) {
                false => Ok(self.clone()),
                true => Err(io::ErrorKind::PermissionDenied.into()),
            }
        }
    }

    impl Failing for io::Error {
        fn no_connection(_: Duration, _: Option<Self>) -> Self {
            io::ErrorKind::TimedOut.into()
        }

        fn is_lasting(&self) -> bool {
            true
        }
    }

    impl Listener for Refused {
        type Failure = io::Error;

        async fn hear(&mut self, _: &Board) -> io::Result<()> {
            sleep(Duration::from_secs(1)).await;
            Err(io::ErrorKind::PermissionDenied.into())
        }

        async fn close(self) {}
    }

    /// Otherwise nobody would ask when a dead holder's lease ends.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn another_asks_at_the_end_of_the_hold_when_one_gives_up() {
        let subscription = Subscription::new(Refused::default());
        let name = LockName::new(&Namespace::default(), "name").unwrap();
        let [first, next] = [(); 2].map(|()| OwnerId::random());
        let holder = lockkit_core::FencingToken::new(7);
        for owner in [first, next] {
            let joined = subscription.join(&name, owner);
            subscription.wait(&name, owner, holder, joined);
        }
        subscription.ask_at(&name, first, Some(Instant::now()));
        subscription.give_up(&name, first);
        // Before anything else has it ask.
        let told = timeout(Duration::ZERO, subscription.changed(&name, next));
        assert_eq!(told.await, Ok(Change::AskAgain));
    }

    /// Otherwise nobody would have the process told again once those in front have gone.
    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn who_relies_on_another_is_not_waited_for() {
        let subscription = Subscription::new(Refused::default());
        let name = LockName::new(&Namespace::default(), "name").unwrap();
        let [first, relies, next] = [(); 3].map(|()| OwnerId::random());
        subscription.board.waiters().are_told = true;
        for (owner, place) in [(first, 1), (relies, 2), (next, 3)] {
            subscription.join(&name, owner);
            subscription.list(&name, owner, Instant::now());
            subscription.stand(&name, owner, place);
        }
        assert!(subscription.board().deliver("lockkit", "name", News::Free));
        assert_eq!(subscription.changed(&name, relies).await, Change::AskAgain);
        subscription.relies_on_another(&name, relies);
        subscription.leave(&name, first);
        let told = timeout(Duration::ZERO, subscription.changed(&name, next));
        assert_eq!(told.await, Ok(Change::AskAgain));
    }

    #[tokio::test(start_paused = true)]
    async fn who_will_hear_nothing_for_long_is_told_at_once() {
        let subscription = Subscription::new(Refused::default());
        let name = LockName::new(&Namespace::default(), "name").unwrap();
        let (owner, start) = (OwnerId::random(), Instant::now());
        for expected in [Joined::NotYet, Joined::Before] {
            let joined = subscription.join(&name, owner);
            assert_eq!(joined, expected);
            subscription.wait(&name, owner, None, joined);
            assert_eq!(subscription.changed(&name, owner).await, Change::AskAgain);
        }
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert_eq!(subscription.join(&name, owner), Joined::NotYet);
    }
}
