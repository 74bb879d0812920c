use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::FencingToken;
use lockkit_core::driver::{Change, Grant, OwnerId};
use redis::aio::{PubSub, PubSubSink};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::cluster::{self, news};
use crate::connection::AbortOnDrop;
use crate::endpoint::Endpoint;
use crate::error::Failure;

/// How long the server may take to confirm a subscription.
pub(crate) const CONFIRM_LIMIT: Duration = Duration::from_secs(3);
/// How long to leave the server alone that has refused a subscription.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How long a channel stays subscribed to that nobody listens to. Where waiters take turns, the next
/// need not subscribe again, and ask again for that reason.
const LINGER: Duration = Duration::from_secs(1);

/// The connection for news, shared by all waiters: one channel for each bucket of locks that
/// somebody waits for, on which nobody but us is told anything.
///
/// It is made when the first waiter needs it, to where the connection for requests leads, and made
/// anew when that is: it may lead to another server, by the same address. Whenever a channel is
/// subscribed to, for the first time or again, its waiters are told to ask again, since what was
/// published before is lost.
#[derive(Debug)]
pub(crate) struct Subscription {
    board: Arc<Board>,
    supervisor: AbortOnDrop,
}

impl Subscription {
    /// Listens at `place`.
    pub(crate) fn new(place: watch::Receiver<Option<Endpoint>>) -> Self {
        let board = Arc::new(Board::default());
        let supervisor = tokio::spawn(supervise(place, board.clone())).abort_handle();
        Self { board, supervisor: AbortOnDrop(supervisor) }
    }

    /// Listens at the members of a cluster.
    pub(crate) fn of_cluster(cluster: Arc<cluster::Shared>) -> Self {
        let board = Arc::new(Board::default());
        let supervisor = tokio::spawn(news::supervise(cluster, board.clone())).abort_handle();
        Self { board, supervisor: AbortOnDrop(supervisor) }
    }

    /// Listens for `owner` from now on, in a `crowd` if it waits in no order, provided that others
    /// listen to the channel already. To be called before an ask.
    pub(crate) fn join(&self, channel: &str, owner: OwnerId, crowd: Option<Crowd>) -> Joined {
        let channels = &mut *self.board.channels();
        match channels.by_name.get_mut(channel) {
            Some(channel) if channel.stands => match channel.mailboxes.entry(owner) {
                Entry::Occupied(mut mailbox) => {
                    // The ask makes up for what was heard before it.
                    mailbox.get_mut().ask_again = false;
                    Joined::Before
                }
                Entry::Vacant(mailbox) => {
                    mailbox.insert(Mailbox { crowd, ..Mailbox::default() });
                    channels.crowds += usize::from(crowd.is_some());
                    Joined::Now
                }
            },
            _ => Joined::NotYet,
        }
    }

    /// Listens for `owner`, whose ask was refused in favour of a holder with this token. `joined` is
    /// what [`join`](Self::join) said before that ask. Returns how many listen in crowds by now.
    pub(crate) fn wait(
        &self,
        channel: String,
        owner: OwnerId,
        holder: FencingToken,
        crowd: Option<Crowd>,
        joined: Joined,
    ) -> usize {
        let channels = &mut *self.board.channels();
        let state = match channels.by_name.get_mut(&channel) {
            Some(state) => state,
            None => {
                channels.altered.push(channel.clone());
                self.board.altered.notify_one();
                channels.by_name.entry(channel).or_default()
            }
        };
        let mailbox = match state.mailboxes.entry(owner) {
            Entry::Occupied(mailbox) => mailbox.into_mut(),
            Entry::Vacant(mailbox) => {
                channels.crowds += usize::from(crowd.is_some());
                mailbox.insert(Mailbox { crowd, ..Mailbox::default() })
            }
        };
        mailbox.holder = Some(holder);
        // The subscription came to stand between the ask and now: something may be missed.
        mailbox.ask_again |= state.stands && joined == Joined::NotYet;
        channels.crowds
    }

    /// Listens no longer for `owner`.
    pub(crate) fn leave(&self, channel: &str, owner: OwnerId) {
        self.board.remove(&mut self.board.channels(), channel, owner);
    }

    /// The next news for `owner`; none ever if it does not listen.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news are taken only when they are returned.
    pub(crate) async fn changed(&self, channel: &str, owner: OwnerId) -> Change {
        loop {
            let arrival = {
                let mut channels = self.board.channels();
                let state = channels.by_name.get_mut(channel);
                match state.and_then(|state| state.mailboxes.get_mut(&owner)) {
                    None => None,
                    Some(mailbox) => match mailbox.take() {
                        None => Some(mailbox.arrival.clone()),
                        Some(change) => {
                            if matches!(change, Change::Granted(_)) {
                                self.board.remove(&mut channels, channel, owner);
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
    pub(crate) fn close(&self) {
        self.supervisor.0.abort();
    }
}

/// Whether news of an ask that is about to be sent will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The owner listens already.
    Before,
    /// The owner listens from now on.
    Now,
    /// No subscription stands.
    NotYet,
}

/// Those of us who wait for one lock in no order, by the digest of its name. Only one of them
/// listens at a time, and it may be another than the server has heard of.
pub(crate) type Crowd = [u8; 32];

/// Who listens to what.
#[derive(Debug, Default)]
pub(crate) struct Board {
    channels: Mutex<Channels>,
    /// A channel got its first listener, or is the first that has lost its last.
    altered: Notify,
}

#[derive(Debug, Default)]
struct Channels {
    /// Those with listeners, and those that had some lately.
    by_name: HashMap<String, Channel>,
    /// Those that have lost their last listener, and when to look whether to unsubscribe from them.
    idle: VecDeque<(Instant, String)>,
    /// Those that may have to be subscribed to or unsubscribed from.
    altered: Vec<String>,
    /// How many listen in crowds.
    crowds: usize,
}

#[derive(Debug, Default)]
struct Channel {
    /// Whether the server has confirmed the subscription.
    stands: bool,
    /// Since when nobody listens.
    silent_since: Option<Instant>,
    /// Whether it is among those to be looked at.
    is_noted: bool,
    mailboxes: HashMap<OwnerId, Mailbox>,
}

/// The news of one waiter.
#[derive(Debug, Default)]
struct Mailbox {
    /// Who held the lock when the owner's last ask was refused.
    holder: Option<FencingToken>,
    crowd: Option<Crowd>,
    granted: Option<FencingToken>,
    ask_again: bool,
    arrival: Arc<Notify>,
}

impl Mailbox {
    fn ask_again(&mut self) {
        self.ask_again = true;
        self.arrival.notify_one();
    }

    fn take(&mut self) -> Option<Change> {
        let ask_again = std::mem::take(&mut self.ask_again);
        let Some(token) = self.granted.take() else {
            return ask_again.then_some(Change::AskAgain);
        };
        match self.holder {
            Some(holder) if token > holder => Some(Change::Granted(Grant::new().token(token))),
            // It was over before the last ask was refused: this message was late.
            Some(_) => ask_again.then_some(Change::AskAgain),
            // No ask was answered, so nothing tells how long the grant is good. Asking does.
            None => Some(Change::AskAgain),
        }
    }
}

impl Board {
    fn channels(&self) -> MutexGuard<'_, Channels> {
        // Nothing panics while it holds the lock.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, channels: &mut Channels, name: &str, owner: OwnerId) {
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        let left = channel.mailboxes.remove(&owner);
        channels.crowds -= usize::from(left.is_some_and(|mailbox| mailbox.crowd.is_some()));
        if !channel.mailboxes.is_empty() {
            return;
        }
        if !channel.stands {
            channels.by_name.remove(name);
            channels.altered.push(name.into());
            self.altered.notify_one();
            return;
        }
        let now = Instant::now();
        channel.silent_since = Some(now);
        if !std::mem::replace(&mut channel.is_noted, true) {
            channels.idle.push_back((now + LINGER, name.into()));
            if channels.idle.len() == 1 {
                self.altered.notify_one();
            }
        }
    }

    /// Whether somebody listens to the channel, or did lately.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.channels().by_name.contains_key(name)
    }

    /// The channels that somebody listens to, or did lately.
    pub(crate) fn wanted(&self) -> Vec<String> {
        self.channels().by_name.keys().cloned().collect()
    }

    /// The channels that may have got their first listener since the last time, or lost their last.
    pub(crate) fn take_altered(&self) -> Vec<String> {
        std::mem::take(&mut self.channels().altered)
    }

    /// Returns when there are such.
    pub(crate) async fn altered(&self) {
        loop {
            let next = {
                let mut channels = self.channels();
                channels.drop_idle(Instant::now());
                if !channels.altered.is_empty() {
                    return;
                }
                channels.idle.front().map(|(due, _)| *due)
            };
            match next {
                None => self.altered.notified().await,
                Some(due) => _ = timeout_at(due, self.altered.notified()).await,
            }
        }
    }

    /// The subscription to these channels does not stand any more.
    pub(crate) fn fall_silent(&self, names: &[String]) {
        let mut channels = self.channels();
        for name in names {
            match channels.by_name.get_mut(name) {
                Some(channel) if channel.mailboxes.is_empty() => _ = channels.by_name.remove(name),
                Some(channel) => channel.stands = false,
                None => (),
            }
        }
    }

    pub(crate) fn deliver(&self, name: &str, payload: &[u8]) {
        let mut channels = self.channels();
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        match News::parse(payload) {
            Some(News::Granted(owner, token)) => {
                if let Some(mailbox) = channel.mailboxes.get_mut(&owner) {
                    mailbox.granted = Some(token);
                    mailbox.arrival.notify_one();
                }
            }
            Some(News::Free(owner)) => {
                let told = channel.mailboxes.get(&owner).map(|mailbox| mailbox.crowd);
                for (listener, mailbox) in &mut channel.mailboxes {
                    let concerns = match told {
                        Some(crowd) => {
                            *listener == owner || crowd.is_some() && mailbox.crowd == crowd
                        }
                        // Refused, and we have not heard of that yet. Or gone: asking does no harm.
                        None => mailbox.crowd.is_some(),
                    };
                    if concerns {
                        mailbox.ask_again();
                    }
                }
            }
            // Of whatever kind: asking does no harm.
            None => channel.mailboxes.values_mut().for_each(Mailbox::ask_again),
        }
    }

    /// The subscription to these channels stands.
    pub(crate) fn confirm(&self, names: &[String]) {
        let mut channels = self.channels();
        for name in names {
            if let Some(channel) = channels.by_name.get_mut(name) {
                channel.stands = true;
                channel.mailboxes.values_mut().for_each(Mailbox::ask_again);
            }
        }
    }

    /// No subscription stands any more.
    fn fall(&self) {
        let mut channels = self.channels();
        channels.by_name.retain(|_, channel| !channel.mailboxes.is_empty());
        channels.by_name.values_mut().for_each(|channel| channel.stands = false);
        channels.altered = channels.by_name.keys().cloned().collect();
    }

    /// What to subscribe to and what to unsubscribe from, given what is subscribed to.
    fn alterations(&self, subscribed: &mut HashSet<String>) -> Alterations {
        let mut channels = self.channels();
        let mut alterations = Alterations::default();
        for name in std::mem::take(&mut channels.altered) {
            match channels.by_name.get_mut(&name) {
                Some(_) if subscribed.insert(name.clone()) => alterations.subscribe.push(name),
                // Abandoned and wanted again before we looked.
                Some(channel) => {
                    channel.stands = true;
                    channel.mailboxes.values_mut().for_each(Mailbox::ask_again);
                }
                None if subscribed.remove(&name) => alterations.unsubscribe.push(name),
                None => (),
            }
        }
        alterations
    }
}

impl Channels {
    /// Gives up channels that nobody has listened to for a while.
    fn drop_idle(&mut self, now: Instant) {
        while self.idle.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, name)) = self.idle.pop_front() else { return };
            let Some(channel) = self.by_name.get_mut(&name) else { continue };
            channel.is_noted = false;
            match channel.silent_since {
                Some(since) if channel.mailboxes.is_empty() => {
                    if since + LINGER <= now {
                        self.by_name.remove(&name);
                        self.altered.push(name);
                    } else {
                        channel.is_noted = true;
                        self.idle.push_back((since + LINGER, name));
                    }
                }
                _ => (),
            }
        }
    }
}

/// A message.
enum News {
    /// `granted OWNER TOKEN`
    Granted(OwnerId, FencingToken),
    /// `free OWNER`
    Free(OwnerId),
}

impl News {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (verb, words) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        match (verb, words.split_once(' ')) {
            ("granted", Some((owner, token))) => {
                Some(Self::Granted(owner.parse().ok()?, token.parse().ok()?))
            }
            ("free", None) => Some(Self::Free(words.parse().ok()?)),
            _ => None,
        }
    }
}

/// Keeps a connection from when somebody listens for the first time.
async fn supervise(mut place: watch::Receiver<Option<Endpoint>>, board: Arc<Board>) {
    let mut backoff = Backoff::default();
    loop {
        while board.channels().by_name.is_empty() {
            board.altered.notified().await;
        }
        backoff.pause().await;
        let endpoint = match place.wait_for(Option::is_some).await.map(|place| place.clone()) {
            Ok(Some(endpoint)) => endpoint,
            // The connection for requests is gone, and so are all who might listen.
            _ => return,
        };
        let listening = async {
            match endpoint.subscribe().await {
                Ok(connection) => listen(connection, &board).await,
                Err(failure) => failure,
            }
        };
        let failure = tokio::select! {
            failure = listening => failure,
            Ok(()) = place.changed() => Failure::Deposed,
        };
        board.fall();
        if failure.is_lasting() {
            tracing::warn!(%endpoint, %failure, "Redis refuses to tell news; waiters poll");
            sleep(REFUSED_PAUSE).await;
        } else {
            tracing::debug!(%endpoint, %failure, "no news from Redis for now; waiters poll");
        }
    }
}

/// Delivers news until the connection breaks.
async fn listen(connection: PubSub, board: &Board) -> Failure {
    let (sink, mut messages) = connection.split();
    let mut subscribed = HashSet::new();
    loop {
        let alterations = board.alterations(&mut subscribed);
        let altering = async {
            if alterations.subscribe.is_empty() && alterations.unsubscribe.is_empty() {
                board.altered().await;
                return Ok(());
            }
            alterations.carry_out(&sink).await?;
            board.confirm(&alterations.subscribe);
            Ok(())
        };
        tokio::pin!(altering);
        // One alteration after the other, and messages all the while.
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        board.deliver(message.get_channel_name(), message.get_payload_bytes());
                    }
                    None => return Failure::Broken,
                },
                altered = &mut altering => match altered {
                    Ok(()) => break,
                    Err(failure) => return failure,
                },
            }
        }
    }
}

#[derive(Debug, Default)]
struct Alterations {
    subscribe: Vec<String>,
    unsubscribe: Vec<String>,
}

impl Alterations {
    /// Returns when the server has confirmed.
    async fn carry_out(&self, sink: &PubSubSink) -> Result<(), Failure> {
        let (mut one, mut other) = (sink.clone(), sink.clone());
        // Without a name, the second would mean all.
        let subscribing = async {
            match &*self.subscribe {
                [] => Ok(()),
                names => one.subscribe(names).await,
            }
        };
        let unsubscribing = async {
            match &*self.unsubscribe {
                [] => Ok(()),
                names => other.unsubscribe(names).await,
            }
        };
        match timeout(CONFIRM_LIMIT, async { tokio::try_join!(subscribing, unsubscribing) }).await {
            Ok(confirmed) => Ok(confirmed.map(|_| ())?),
            Err(_) => Err(Failure::NoAnswer(CONFIRM_LIMIT)),
        }
    }
}
