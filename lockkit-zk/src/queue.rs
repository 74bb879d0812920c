//! Taking a place in the queue of a lock, and leaving it.

use std::sync::Arc;

use futures_util::future::try_join_all;
use lockkit_core::FencingToken;
use lockkit_core::driver::{Attempt, Claim, DriverError, ErrorKind, Grant, Limit, Release, Taken};
use zookeeper_client::{Client, CreateMode, Error};

use crate::claims::{Ahead, Claims, Entry, Node, Trace};
use crate::error::Failure;
use crate::layout::{Layout, Queue};
use crate::rank::Rank;
use crate::session::{Session, is_same};
use crate::sessions::Sessions;

/// How many times to try with a folder that is removed meanwhile.
const TRIES: usize = 5;

/// One request, which may take several messages, about one claim.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    sessions: &'a Sessions,
    claims: &'a Claims,
    layout: &'a Layout,
    session: Arc<Session>,
    claim: &'a Claim,
    folder: String,
    limit: Limit,
}

impl<'a> Request<'a> {
    /// Waits until there is a connection.
    pub(crate) async fn new(
        sessions: &'a Sessions,
        claims: &'a Claims,
        layout: &'a Layout,
        claim: &'a Claim,
        limit: Limit,
    ) -> Result<Self, Failure> {
        let session = sessions.connected(limit).await?;
        let folder = layout.lock(claim.name());
        Ok(Self { sessions, claims, layout, session, claim, folder, limit })
    }

    /// Asks for the lock.
    pub(crate) async fn ask(&self, entry: &Entry) -> Result<Attempt, DriverError> {
        // Boxed, since whoever asks for the first time has no node.
        if !entry.is_nothing()
            && let Some(answer) = Box::pin(self.ask_again(entry)).await?
        {
            return Ok(answer);
        }
        let (node, queue) = self.create(entry).await?;
        self.judge(entry, node, &queue).await
    }

    /// Looks at the node that the claim has, or may have; `None` if it has none.
    async fn ask_again(&self, entry: &Entry) -> Result<Option<Attempt>, DriverError> {
        match entry.trace() {
            Trace::Place(node, ahead) if is_same(&node.session, &self.session) => {
                if let Some(ahead) = ahead
                    && self.claim.waits()
                    && self.waits_yet(&node, &ahead).await.map_err(Failure::with_traces)?
                {
                    return Ok(Some(Attempt::Taken(Taken::new())));
                }
                // All that our server may not have heard of yet is that others have left.
                let seen = self.list().await.map_err(Failure::with_traces)?;
                let first = seen.as_ref().as_ref().ok().and_then(|queue| queue.first());
                if first.is_some_and(|first| first == node.name()) {
                    return self.grant(entry, node).map(Some);
                }
                self.look_again(entry, node).await
            }
            Trace::Hold(node) if is_same(&node.session, &self.session) => {
                self.look_again(entry, node).await
            }
            Trace::Doubt(session) if is_same(&session, &self.session) => {
                if let Some((node, queue)) = self.adopt().await.map_err(Failure::with_traces)? {
                    entry.set(Trace::Place(node.clone(), None));
                    return self.judge(entry, node, &queue).await.map(Some);
                }
                entry.set(Trace::Nothing);
                Ok(None)
            }
            // What was made in a session that has ended is gone, or is removed below.
            _ => {
                entry.set(Trace::Nothing);
                Ok(None)
            }
        }
    }

    /// Whether the node stands, and the one that was before it. If so, that one still is before it,
    /// and only these two are looked at, however long the queue.
    async fn waits_yet(&self, node: &Node, ahead: &Ahead) -> Result<bool, Failure> {
        let (client, path) = (self.session.client(), &node.path);
        let synced = client.sync(path);
        let (own, ahead) = (client.check_stat(path), client.check_stat(&ahead.path));
        let (synced, own, ahead) = tokio::join!(
            self.session.read(self.limit, synced),
            self.session.read(self.limit, own),
            self.session.read(self.limit, ahead)
        );
        synced?;
        let stands = own?.is_some_and(|stat| stat.czxid == node.czxid);
        match ahead {
            Ok(ahead) => Ok(ahead.is_some() && stands),
            // From ZooKeeper 3.8.4 on, this takes the right to read the node.
            Err(failure) if failure.is_answer() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// How a node that was there before stands now; `None` if somebody else removed it, and what
    /// follows is a new claim.
    async fn look_again(&self, entry: &Entry, node: Node) -> Result<Option<Attempt>, DriverError> {
        let queue = self.list_synced().await.map_err(Failure::with_traces)?;
        let is_gone = |queue: &Vec<String>| queue.iter().all(|name| name != node.name());
        if !queue.as_ref().as_ref().is_ok_and(is_gone) {
            return self.judge(entry, node, &queue).await.map(Some);
        }
        node.rank.goes();
        entry.set(Trace::Nothing);
        Ok(None)
    }

    /// Makes a node and looks at the queue, in one round trip.
    async fn create(&self, entry: &Entry) -> Result<(Node, Arc<Queue>), DriverError> {
        let prefix = self.layout.prefix(self.claim.owner());
        let path = [&self.folder, "/", &prefix].concat();
        let data = self.claim.label().as_str().as_bytes();
        let options = CreateMode::EphemeralSequential.with_acls(self.sessions.endpoint().acls());
        let client = self.session.client();
        for _ in 0..TRIES {
            entry.set(Trace::Doubt(self.session.clone()));
            let create = self.session.send(|| client.create(&path, data, &options));
            let (created, listed) =
                tokio::join!(self.session.write(self.limit, create), self.list());
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(failure) if failure.is_no_node() => {
                    entry.set(Trace::Nothing);
                    Box::pin(self.make_folder()).await.map_err(Failure::without_effect)?;
                    continue;
                }
                Err(failure) => {
                    if failure.is_answer() {
                        entry.set(Trace::Nothing);
                    }
                    return Err(failure.of_a_request());
                }
            };
            let path = format!("{path}{sequence}");
            let node = Node::new(self.session.clone(), path, stat.czxid);
            let queue = match listed {
                Ok(queue) => queue,
                // Whoever may not see the queue would stand in it and block everybody.
                Err(failure) if failure.is_lasting() => {
                    return Err(self.withdraw(entry, &node, failure).await);
                }
                Err(failure) => return Err(failure.with_traces()),
            };
            self.remove_older(&node, queue.iter().flatten()).await.map_err(Failure::with_traces)?;
            // Until here it was in doubt: what an earlier session has left is looked for again.
            entry.set(Trace::Place(node.clone(), None));
            return Ok((node, queue));
        }
        Err(Failure::Client(Error::NoNode).without_effect())
    }

    /// Removes what the claim has left from an earlier session.
    async fn remove_older(
        &self,
        node: &Node,
        names: impl Iterator<Item = &String>,
    ) -> Result<(), Failure> {
        let prefix = self.layout.prefix(self.claim.owner());
        for older in names.filter(|name| is_older(name, &prefix, node)) {
            Box::pin(self.delete(&[&self.folder, "/", older].concat())).await?;
        }
        Ok(())
    }

    /// The node whose creation was not answered, if it was made after all, and the queue.
    ///
    /// Nothing that was sent before can land later: the servers take the requests of a session in
    /// order, and refuse those that arrive by a connection that the session has left.
    async fn adopt(&self) -> Result<Option<(Node, Queue)>, Failure> {
        let nodes = self.nodes().await?;
        let mut adopted: Option<Node> = None;
        for name in self.own(&nodes) {
            let path = [&self.folder, "/", name].concat();
            let stat =
                self.session.read(self.limit, self.session.client().check_stat(&path)).await?;
            match stat {
                Some(stat) if stat.ephemeral_owner == self.session.id() && adopted.is_none() => {
                    adopted = Some(Node::new(self.session.clone(), path, stat.czxid));
                }
                // It is of a session that is about to end, and that takes its node along.
                Some(_) => self.delete(&path).await?,
                None => (),
            }
        }
        let Some(node) = adopted else { return Ok(None) };
        self.remove_older(&node, nodes.iter()).await?;
        let ordered = in_order(self.session.client(), self.layout, &self.folder, nodes);
        Ok(Some((node, self.session.read(self.limit, ordered).await?)))
    }

    /// Whether the claim's node is the first.
    async fn judge(
        &self,
        entry: &Entry,
        node: Node,
        queue: &Queue,
    ) -> Result<Attempt, DriverError> {
        let queue = match queue {
            Ok(queue) => queue,
            // Nothing of ours is to stay where there is something else.
            Err(failure) => return Err(self.withdraw(entry, &node, failure.clone()).await),
        };
        let Some(at) = queue.iter().position(|name| name == node.name()) else {
            return Err(Failure::Removed.with_traces());
        };
        let prefix = self.layout.prefix(self.claim.owner());
        // What was left from before has been removed by now.
        let mut before = queue[..at].iter().filter(|name| !is_older(name, &prefix, &node));
        let Some(first) = before.next() else { return self.grant(entry, node) };
        if !self.claim.waits() {
            Box::pin(remove(&node, self.limit)).await.map_err(Failure::with_traces)?;
            entry.set(Trace::Nothing);
            return Ok(Attempt::Taken(Taken::new()));
        }
        let ahead = self.ahead(before.next_back().unwrap_or(first));
        if at == 1 {
            ahead.rank.set_first();
        }
        entry.set(Trace::Place(node, Some(ahead)));
        Ok(Attempt::Taken(Taken::new()))
    }

    /// Removes the node of a claim that can have no place, for that reason.
    async fn withdraw(&self, entry: &Entry, node: &Node, reason: Failure) -> DriverError {
        match Box::pin(remove(node, self.limit)).await {
            Ok(()) => {
                entry.set(Trace::Nothing);
                reason.of_a_request()
            }
            Err(failure) => failure.with_traces(),
        }
    }

    /// The node just before that of a claim. What becomes of it is known here if it is one of ours.
    fn ahead(&self, name: &str) -> Ahead {
        let entry = self.layout.owner(name).and_then(|owner| self.claims.find(owner));
        let node = entry.and_then(|entry| entry.node());
        match node.filter(|node| node.name() == name && is_same(&node.session, &self.session)) {
            Some(Node { path, rank, .. }) => Ahead { path, rank },
            None => {
                let path = [&self.folder, "/", name].concat().into();
                Ahead { path, rank: Rank::of_a_stranger() }
            }
        }
    }

    fn grant(&self, entry: &Entry, node: Node) -> Result<Attempt, DriverError> {
        let grant = grant(&node)?;
        match entry.advance(node, self.sessions.losses()) {
            true => Ok(Attempt::Granted(grant)),
            false if self.session.has_ended() => {
                Err(Failure::Client(Error::SessionExpired).with_traces())
            }
            false => Err(Failure::GivenUp.with_traces()),
        }
    }

    /// Removes whatever the claim has.
    pub(crate) async fn release(&self, entry: Option<&Entry>) -> Result<Release, DriverError> {
        let (node, held) = match entry.map(Entry::trace) {
            Some(Trace::Hold(node)) => (node, true),
            Some(Trace::Place(node, _)) => (node, false),
            _ => return Box::pin(self.sweep(|| true)).await,
        };
        if !is_same(&node.session, &self.session) {
            return Box::pin(self.sweep(|| true)).await;
        }
        let was_leaving = entry.is_some_and(Entry::leaves);
        let path = &node.path;
        let delete = self.session.send(|| self.session.client().delete(path, None));
        let deleted = self.session.write(self.limit, delete).await;
        if deleted.as_ref().err().is_none_or(Failure::is_no_node) {
            node.rank.goes();
        }
        match deleted {
            Ok(()) if held => Ok(Release::Freed),
            // An earlier delete may have done it.
            Err(failure) if failure.is_no_node() && held && was_leaving => Ok(Release::Freed),
            Ok(()) => Ok(Release::NotHeld),
            Err(failure) if failure.is_no_node() => Ok(Release::NotHeld),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    /// Removes what the claim may have left, in whatever session, as long as `is_to_go` says so.
    pub(crate) async fn sweep(&self, is_to_go: impl Fn() -> bool) -> Result<Release, DriverError> {
        let nodes = self.nodes().await.map_err(Failure::of_a_request)?;
        for name in self.own(&nodes).take_while(|_| is_to_go()) {
            let path = [&self.folder, "/", name].concat();
            self.delete(&path).await.map_err(Failure::of_a_request)?;
        }
        Ok(Release::NotHeld)
    }

    fn own<'n>(&self, nodes: &'n [String]) -> impl Iterator<Item = &'n String> + use<'n> {
        let prefix = self.layout.prefix(self.claim.owner());
        nodes.iter().filter(move |name| name.starts_with(&prefix))
    }

    /// The queue at some time after this is called, as far as our server has heard.
    async fn list(&self) -> Result<Arc<Queue>, Failure> {
        let look = async || {
            let client = self.session.client();
            let listed = or_none(client.list_children(&self.folder).await)?;
            in_order(client, self.layout, &self.folder, listed).await
        };
        let line = self.session.looks().join(&self.folder);
        self.session.read(self.limit, line.look(self.limit.length() / 2, look)).await
    }

    /// The queue at the time the leader is asked, or later: a server that follows may be behind.
    async fn list_synced(&self) -> Result<Arc<Queue>, Failure> {
        let synced = self.session.client().sync(&self.folder);
        let (synced, queue) = tokio::join!(self.session.read(self.limit, synced), self.list());
        synced?;
        queue
    }

    /// All nodes in the folder of the lock at the time the leader is asked, or later.
    async fn nodes(&self) -> Result<Vec<String>, Failure> {
        children_synced(&self.session, &self.folder, self.limit).await
    }

    async fn delete(&self, path: &str) -> Result<(), Failure> {
        delete(&self.session, path, self.limit).await
    }

    /// Makes what is missing above the nodes, as containers, which the servers remove once they
    /// have become empty.
    async fn make_folder(&self) -> Result<(), Failure> {
        let acls = self.sessions.endpoint().acls();
        let options = CreateMode::Container.with_acls(acls);
        let made = self.session.client().mkdir(&self.folder, &options);
        self.session.read(self.limit, made).await
    }
}

/// What is in a folder, if there is one, at the time the leader is asked, or later.
pub(crate) async fn children_synced(
    session: &Session,
    folder: &str,
    limit: Limit,
) -> Result<Vec<String>, Failure> {
    let client = session.client();
    let (synced, listed) = (client.sync(folder), client.list_children(folder));
    let listed = async { or_none(listed.await) };
    let (synced, listed) = tokio::join!(session.read(limit, synced), session.read(limit, listed));
    synced?;
    listed
}

/// The nodes of a lock in the order in which they are served. Where their names do not tell the
/// order, each node is looked at.
pub(crate) async fn in_order(
    client: &Client,
    layout: &Layout,
    folder: &str,
    nodes: Vec<String>,
) -> Result<Queue, Error> {
    let queue = layout.queue(nodes);
    match queue {
        Ok(nodes) if !layout.is_told_by_names(&nodes) => {
            Box::pin(in_order_of_creation(client, folder, nodes)).await.map(Ok)
        }
        queue => Ok(queue),
    }
}

async fn in_order_of_creation(
    client: &Client,
    folder: &str,
    nodes: Vec<String>,
) -> Result<Vec<String>, Error> {
    let stat = |name| client.check_stat(&[folder, "/", name].concat());
    let stats = try_join_all(nodes.iter().map(|name| stat(name))).await?;
    // Whoever has left meanwhile is left out.
    let there = nodes.into_iter().zip(stats).filter_map(|(name, stat)| Some((stat?.czxid, name)));
    let mut there: Vec<_> = there.collect();
    there.sort_unstable();
    Ok(there.into_iter().map(|(_, name)| name).collect())
}

/// The children of a node; none if the node is not there.
fn or_none(listed: Result<Vec<String>, Error>) -> Result<Vec<String>, Error> {
    match listed {
        Err(Error::NoNode) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Whether it is another node of the owner whose nodes begin with `prefix`.
fn is_older(name: &str, prefix: &str, node: &Node) -> bool {
    name.starts_with(prefix) && name != node.name()
}

/// Removes the node of a claim, and tells whoever is behind it.
pub(crate) async fn remove(node: &Node, limit: Limit) -> Result<(), Failure> {
    delete(&node.session, &node.path, limit).await?;
    node.rank.goes();
    Ok(())
}

/// Removes a node, if there is one.
async fn delete(session: &Session, path: &str, limit: Limit) -> Result<(), Failure> {
    let delete = session.send(|| session.client().delete(path, None));
    match session.write(limit, delete).await {
        Err(failure) if failure.is_no_node() => Ok(()),
        answer => answer,
    }
}

/// What a first node is worth.
pub(crate) fn grant(node: &Node) -> Result<Grant, DriverError> {
    let token = token(node.czxid)?;
    Ok(Grant::new().token(token).vouch(node.session.vouch()))
}

/// The number of the transaction that made the node: no later one of the ensemble is smaller.
pub(crate) fn token(czxid: i64) -> Result<FencingToken, DriverError> {
    FencingToken::try_from(czxid).map_err(|_| {
        let source = format!("{czxid} is no number of a transaction");
        DriverError::new(ErrorKind::Misconfigured, source)
    })
}

/// Whether the node is there at the time the leader is asked, or later.
pub(crate) async fn stands(session: &Session, node: &Node, limit: Limit) -> Result<bool, Failure> {
    let (client, path) = (session.client(), &node.path);
    let (synced, stat) = (client.sync(path), client.check_stat(path));
    let (synced, stat) = tokio::join!(session.read(limit, synced), session.read(limit, stat));
    synced?;
    Ok(stat?.is_some_and(|stat| stat.czxid == node.czxid))
}
