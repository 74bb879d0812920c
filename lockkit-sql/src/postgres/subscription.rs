use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Backoff, Change, Grant, OwnerId};
use lockkit_core::{FencingToken, LockName};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::Endpoint;
use super::error::Failure;

/// How often to look whether anybody listens still, and whether the server is still there: a peer
/// that vanished says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// A connection that broke sooner counts as a failed attempt.
const CALM: Duration = Duration::from_secs(5);
/// How long to leave the server alone that tells no news.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The connection for news, shared by all waiters, on one channel for all locks.
///
/// It is made when the first waiter needs it, and given up some time after the last has gone.
/// Whenever it comes to stand, the waiters are told to ask again, since what was told before is
/// lost.
#[derive(Debug)]
pub(super) struct Subscription {
    channel: Arc<str>,
    board: Arc<Board>,
    supervisor: AbortOnDropHandle<()>,
}

impl Subscription {
    pub(super) fn new(endpoint: Endpoint, channel: String) -> Self {
        let (channel, board): (Arc<str>, _) = (channel.into(), Arc::new(Board::default()));
        let supervisor = tokio::spawn(supervise(endpoint, channel.clone(), board.clone()));
        Self { channel, board, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Where the news are told.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Listens for `owner` from now on, provided that the subscription stands. To be called before
    /// an ask.
    pub(super) fn join(&self, name: &LockName, owner: OwnerId) -> Joined {
        let mut waiters = self.board.waiters();
        if !waiters.are_told {
            return Joined::NotYet;
        }
        match waiters.of(name).entry(owner) {
            Entry::Occupied(mut mailbox) => {
                let mailbox = mailbox.get_mut();
                // What the last answer said tells nothing of this ask, whose answer may be lost.
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

    /// Listens for `owner`, whose ask was refused in favour of a holder with this token, where
    /// grants are pushed at all. `joined` is what [`join`](Self::join) said before that ask.
    pub(super) fn wait(
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
        // The subscription came to stand between the ask and now: something may be missed.
        mailbox.ask_again |= are_told && joined == Joined::NotYet;
        drop(waiters);
        self.board.wanted.notify_one();
    }

    /// Notes when `owner` is to ask because the hold ends, unless it is renewed; or that another one
    /// will.
    pub(super) fn ask_at(&self, name: &LockName, owner: OwnerId, end: Option<Instant>) {
        let mut waiters = self.board.waiters();
        let mailboxes = waiters.by_lock.get_mut(&key(name));
        if let Some(mailbox) = mailboxes.and_then(|mailboxes| mailboxes.get_mut(&owner)) {
            mailbox.ask_at = end;
        }
    }

    /// Whether `owner`, which has been refused, will be told of what it waits for, and has not been
    /// told anything yet, nor come to where it is to ask all the same.
    pub(super) fn relies(&self, name: &LockName, owner: OwnerId) -> bool {
        let waiters = self.board.waiters();
        let mailbox = waiters.by_lock.get(&key(name)).and_then(|mailboxes| mailboxes.get(&owner));
        waiters.are_told
            && mailbox.is_some_and(|mailbox| mailbox.holder.is_some() && !mailbox.is_to_ask())
    }

    /// Tells who waits in this process that the lock was let go.
    pub(super) fn tell(&self, name: &LockName) {
        if let Some(mailboxes) = self.board.waiters().by_lock.get_mut(&key(name)) {
            mailboxes.values_mut().for_each(Mailbox::freed);
        }
    }

    /// Listens no longer for `owner`.
    pub(super) fn leave(&self, name: &LockName, owner: OwnerId) {
        let mut waiters = self.board.waiters();
        // Mostly nobody waits for anything.
        if !waiters.by_lock.is_empty() {
            waiters.remove(&key(name), owner);
        }
    }

    /// The next news for `owner`; none ever if it does not listen.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news are taken only when they are returned.
    pub(super) async fn changed(&self, name: &LockName, owner: OwnerId) -> Change {
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

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.supervisor.abort();
    }
}

/// Whether news of an ask that is about to be sent will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The owner listens already.
    Before,
    /// The owner listens from now on.
    Now,
    /// The subscription does not stand.
    NotYet,
}

#[derive(Debug, Default)]
struct Board {
    waiters: Mutex<Waiters>,
    /// Somebody has come to wait.
    wanted: Notify,
}

/// Who listens.
#[derive(Debug, Default)]
struct Waiters {
    /// Whether the server has confirmed the subscription.
    are_told: bool,
    by_lock: HashMap<String, HashMap<OwnerId, Mailbox>>,
}

/// The news of one waiter.
#[derive(Debug, Default)]
struct Mailbox {
    /// Who held the lock when the owner's last ask was refused.
    holder: Option<FencingToken>,
    /// When that one's hold ends, which nobody tells.
    ask_at: Option<Instant>,
    granted: Option<FencingToken>,
    freed: bool,
    ask_again: bool,
    arrival: Arc<Notify>,
}

impl Mailbox {
    fn ask_again(&mut self) {
        self.ask_again = true;
        self.arrival.notify_one();
    }

    fn freed(&mut self) {
        self.freed = true;
        self.arrival.notify_one();
    }

    fn is_to_ask(&self) -> bool {
        let is_due = self.ask_at.is_some_and(|end| end <= Instant::now());
        is_due || self.ask_again || self.freed || self.granted.is_some()
    }

    fn take(&mut self) -> Option<Change> {
        let freed = std::mem::take(&mut self.freed).then_some(Change::Freed);
        let hint = std::mem::take(&mut self.ask_again).then_some(Change::AskAgain).or(freed);
        match (self.granted.take(), self.holder) {
            (None, _) => hint,
            (Some(token), Some(holder)) if token > holder => {
                Some(Change::Granted(Grant::new().token(token)))
            }
            // It was over before the last ask was refused: this message was late.
            (Some(_), Some(_)) => hint,
            // No ask was answered, so nothing tells how long the grant is good. Asking does.
            (Some(_), None) => Some(Change::AskAgain),
        }
    }
}

impl Waiters {
    fn of(&mut self, name: &LockName) -> &mut HashMap<OwnerId, Mailbox> {
        self.by_lock.entry(key(name)).or_default()
    }

    fn remove(&mut self, key: &str, owner: OwnerId) {
        let Some(mailboxes) = self.by_lock.get_mut(key) else { return };
        mailboxes.remove(&owner);
        if mailboxes.is_empty() {
            self.by_lock.remove(key);
        }
    }
}

impl Board {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        // Nothing panics while it holds the lock.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.waiters().by_lock.is_empty()
    }

    /// The subscription stands.
    fn stand(&self) {
        let mut waiters = self.waiters();
        waiters.are_told = true;
        waiters.by_lock.values_mut().flat_map(HashMap::values_mut).for_each(Mailbox::ask_again);
    }

    /// The subscription stands no more.
    fn fall(&self) {
        self.waiters().are_told = false;
    }

    /// `NAMESPACE`, `NAME` and the news, a line each.
    fn deliver(&self, message: &str) {
        let Some((key, news)) = message.rsplit_once('\n') else { return };
        let mut waiters = self.waiters();
        let Some(mailboxes) = waiters.by_lock.get_mut(key) else { return };
        match News::parse(news) {
            News::Granted(owner, token) => {
                if let Some(mailbox) = mailboxes.get_mut(&owner) {
                    mailbox.granted = Some(token);
                    mailbox.arrival.notify_one();
                }
            }
            // Only one of them listens at a time, and it may be another than the server has heard of.
            News::Free => mailboxes.values_mut().for_each(Mailbox::ask_again),
            News::Released => mailboxes.values_mut().for_each(Mailbox::freed),
        }
    }
}

/// Neither part has a line break in it.
fn key(name: &LockName) -> String {
    [name.namespace().as_str(), name.as_str()].join("\n")
}

/// What is told of a lock.
enum News {
    /// `granted OWNER TOKEN`
    Granted(OwnerId, FencingToken),
    /// `free OWNER`: of those who wait in no order, one of this process is to try.
    Free,
    /// `released`, which all are told who wait for a session's lock. What is not known is taken for
    /// that: asking does no harm.
    Released,
}

impl News {
    fn parse(news: &str) -> Self {
        let mut words = news.split(' ');
        let parsed = match (words.next(), words.next(), words.next()) {
            (Some("granted"), Some(owner), Some(token)) => {
                owner.parse().ok().zip(token.parse().ok()).map(|(o, t)| Self::Granted(o, t))
            }
            (Some("free"), Some(_), None) => Some(Self::Free),
            _ => None,
        };
        parsed.unwrap_or(Self::Released)
    }
}

/// Keeps a connection while somebody listens.
async fn supervise(endpoint: Endpoint, channel: Arc<str>, board: Arc<Board>) {
    let mut backoff = Backoff::default();
    loop {
        while board.is_empty() {
            board.wanted.notified().await;
        }
        sleep(backoff.pause()).await;
        let began = Instant::now();
        let failure = listen(&endpoint, &channel, &board).await;
        board.fall();
        let Err(failure) = failure else { continue };
        match began.elapsed() < CALM {
            true => backoff.failed(),
            false => backoff.succeeded(),
        }
        if failure.is_lasting() {
            tracing::warn!(%endpoint, %failure, "PostgreSQL tells no news; waiters poll");
            sleep(REFUSED_PAUSE).await;
        } else {
            tracing::debug!(%endpoint, %failure, "no news from PostgreSQL for now; waiters poll");
        }
    }
}

/// Delivers news until the connection breaks or nobody listens any more.
async fn listen(endpoint: &Endpoint, channel: &str, board: &Board) -> Result<(), Failure> {
    let mut listener = endpoint.listen(channel).await?;
    board.stand();
    let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_empty = false;
    loop {
        // News of others' locks may leave no pause.
        tokio::select! {
            biased;
            _ = looks.tick() => {
                let is_empty = board.is_empty();
                // Where somebody waits now and then, that is worth a connection.
                if std::mem::replace(&mut was_empty, is_empty) && is_empty {
                    return Ok(());
                }
                listener.check().await?;
            }
            news = listener.next() => board.deliver(&news?),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant, advance};

    use super::Mailbox;

    #[tokio::test(start_paused = true)]
    async fn who_is_to_ask_at_the_end_of_a_hold_does_so() {
        const LEFT: Duration = Duration::from_secs(1);
        let mailbox = Mailbox { ask_at: Some(Instant::now() + LEFT), ..Mailbox::default() };
        assert!(!mailbox.is_to_ask());
        advance(LEFT).await;
        assert!(mailbox.is_to_ask());
        assert!(!Mailbox { ask_at: None, ..mailbox }.is_to_ask(), "another one does");
    }
}
