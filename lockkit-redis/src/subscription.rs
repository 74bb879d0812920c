//! What waiters hear of. Who waits, and what each was told, is in `board.rs`.

mod board;

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::FencingToken;
use lockkit_core::driver::{Change, OwnerId};
use redis::aio::{PubSub, PubSubSink};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::board::Board;
use self::board::{LockDigest, Mailbox};
use crate::backoff::Backoff;
use crate::cluster::{self, news};
use crate::endpoint::Endpoint;
use crate::error::Failure;

/// How long the server may take to confirm a subscription.
pub(crate) const CONFIRM_LIMIT: Duration = Duration::from_secs(3);
/// How long to leave a server alone that has refused a subscription.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The connection for news, shared by all waiters. It has one channel for each bucket of locks that
/// somebody waits for, on which nobody but us is told anything.
///
/// It is made when the first waiter needs it, to where the connection for requests leads, and made
/// anew whenever that one is: it may lead to another server, at the same address. Whenever a
/// channel is subscribed to, for the first time or again, its waiters are told to ask again, since
/// what was published before is lost.
#[derive(Debug)]
pub(crate) struct Subscription {
    board: Arc<Board>,
    supervisor: AbortOnDropHandle<()>,
}

impl Subscription {
    /// Listens at `place`.
    pub(crate) fn new(place: watch::Receiver<Option<Endpoint>>) -> Self {
        let board = Arc::new(Board::default());
        let supervisor = tokio::spawn(supervise(place, board.clone()));
        Self { board, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Listens at the members of a cluster.
    pub(crate) fn of_cluster(cluster: Arc<cluster::Shared>) -> Self {
        let board = Arc::new(Board::default());
        let supervisor = tokio::spawn(news::supervise(cluster, board.clone()));
        Self { board, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Listens for `owner` from now on, in a `crowd` if it waits in no order, provided that others
    /// listen to the channel already. It is to be called before an ask.
    pub(crate) fn join(&self, channel: &str, owner: OwnerId, crowd: Option<LockDigest>) -> Joined {
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

    /// Listens for `owner`, whose ask was refused in favour of a holder with this token. `joined`
    /// is what [`join`](Self::join) said before that ask. Returns how many now listen in crowds.
    pub(crate) fn wait(
        &self,
        channel: String,
        owner: OwnerId,
        holder: FencingToken,
        crowd: Option<LockDigest>,
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
        // The subscription has come to stand since the ask: something may have been missed.
        mailbox.ask_again |= state.stands && joined == Joined::NotYet;
        channels.crowds
    }

    /// Stops listening for `owner`.
    pub(crate) fn leave(&self, channel: &str, owner: OwnerId) {
        self.board.remove(&mut self.board.channels(), channel, owner);
    }

    /// The next news for `owner`; never returns if it does not listen.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when it is returned.
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
        self.supervisor.abort();
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

/// Keeps a connection, from when somebody listens for the first time.
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
        let elsewhere = |place: &Option<Endpoint>| {
            place.as_ref().is_some_and(|place| !place.is_where(&endpoint))
        };
        let listening = async {
            match endpoint.subscribe().await {
                Ok(connection) => listen(connection, &board).await,
                Err(failure) => failure,
            }
        };
        let failure = tokio::select! {
            failure = listening => failure,
            Ok(()) = place.changed() => match elsewhere(&place.borrow()) {
                true => Failure::Deposed,
                false => Failure::MadeAnew,
            },
        };
        board.fall();
        if failure.is_lasting() {
            tracing::warn!(%endpoint, %failure, "Redis refuses to tell news; waiters poll");
            // Another server may accept subscriptions. The sender is gone only with all who listen.
            _ = timeout(REFUSED_PAUSE, place.wait_for(elsewhere)).await;
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
        // Without a name, the second would mean all channels.
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

#[cfg(test)]
mod tests {
    use lockkit_testkit::Log;
    use redis::RedisConnectionInfo;
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::Address;

    /// A server that accepts connections and says nothing.
    #[tokio::test]
    async fn a_new_connection_to_the_same_server_is_not_called_another_primary() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (host, port) = ("127.0.0.1".into(), server.local_addr().unwrap().port());
        let address = Address::Network { host, port, tls: None };
        let here = Endpoint::new(address, RedisConnectionInfo::default());
        for (next, why) in [
            (here.clone(), "the connection for requests was made anew"),
            (here.at_port(1), "another server has become the primary"),
        ] {
            let log = Log::start();
            let place = watch::Sender::new(Some(here.clone()));
            let news = Subscription::new(place.subscribe());
            let (owner, token) = (OwnerId::random(), FencingToken::new(1).unwrap());
            news.wait("channel".into(), owner, token, None, Joined::NotYet);
            let _connection = server.accept().await.unwrap();
            place.send_replace(Some(next));
            while log.line("waiters poll").is_none() {
                tokio::task::yield_now().await;
            }
            assert!(log.line(why).is_some(), "{log:?}");
        }
    }
}
