//! Taking a place in the queue of a lock, and leaving it.

use std::sync::Arc;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Attempt, Claim, DriverError, ErrorKind, Grant, Release, Taken};
use zookeeper_client::{CreateMode, Error};

use crate::claims::{Ahead, Entry, Node, Trace};
use crate::error::Failure;
use crate::layout::Layout;
use crate::session::{Limit, Session, is_same};
use crate::sessions::Sessions;

/// How often a folder is made that is removed meanwhile.
const TRIES: usize = 5;

/// One request, which may take several messages, about one claim.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    sessions: &'a Sessions,
    layout: &'a Layout,
    session: Arc<Session>,
    claim: &'a Claim,
    folder: String,
    limit: Limit,
}

impl<'a> Request<'a> {
    /// Once there is a connection.
    pub(crate) async fn new(
        sessions: &'a Sessions,
        layout: &'a Layout,
        claim: &'a Claim,
        limit: Limit,
    ) -> Result<Self, Failure> {
        let session = sessions.connected(limit).await?;
        let folder = layout.lock(claim.name());
        Ok(Self { sessions, layout, session, claim, folder, limit })
    }

    /// Asks for the lock.
    pub(crate) async fn ask(&self, entry: &Entry) -> Result<Attempt, DriverError> {
        match entry.trace() {
            Trace::Place(node, _) if is_same(&node.session, &self.session) => {
                // What our server has not heard of yet can only be that others have left.
                let seen = self.list().await.map_err(Failure::with_traces)?;
                let is_first = self.layout.queue(seen).is_ok_and(|queue| {
                    queue.first().is_some_and(|contender| contender.node == node.name())
                });
                if is_first {
                    return self.grant(entry, node);
                }
                if let Some(answer) = self.look_again(entry, node).await? {
                    return Ok(answer);
                }
            }
            Trace::Hold(node) if is_same(&node.session, &self.session) => {
                if let Some(answer) = self.look_again(entry, node).await? {
                    return Ok(answer);
                }
            }
            Trace::Doubt(session) if is_same(&session, &self.session) => {
                if let Some((node, nodes)) = self.adopt().await.map_err(Failure::with_traces)? {
                    return self.judge(entry, node, nodes).await;
                }
                entry.set(Trace::Nothing);
            }
            // What was made in a session that has ended is gone, or is removed below.
            _ => entry.set(Trace::Nothing),
        }
        let (node, nodes) = self.create(entry).await?;
        self.judge(entry, node, nodes).await
    }

    /// How a node stands that was there before; none if it was removed by somebody else: what
    /// follows is a new claim.
    async fn look_again(&self, entry: &Entry, node: Node) -> Result<Option<Attempt>, DriverError> {
        let nodes = self.list_synced().await.map_err(Failure::with_traces)?;
        if nodes.iter().any(|name| name == node.name()) {
            return self.judge(entry, node, nodes).await.map(Some);
        }
        entry.set(Trace::Nothing);
        Ok(None)
    }

    /// Makes a node and looks at the queue, in one round trip.
    async fn create(&self, entry: &Entry) -> Result<(Node, Vec<String>), DriverError> {
        let prefix = self.layout.prefix(self.claim.owner());
        let path = [&self.folder, "/", &prefix].concat();
        let data = self.claim.label().as_str().as_bytes();
        let options = CreateMode::EphemeralSequential.with_acls(self.sessions.endpoint().acls());
        let client = self.session.client();
        for _ in 0..TRIES {
            entry.set(Trace::Doubt(self.session.clone()));
            let create = self.session.send(|| client.create(&path, data, &options));
            let list = client.list_children(&self.folder);
            let (created, listed) = tokio::join!(
                self.session.write(self.limit, create),
                self.session.read(self.limit, list)
            );
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(failure) if failure.is_no_node() => {
                    entry.set(Trace::Nothing);
                    self.make_folder().await.map_err(Failure::without_effect)?;
                    continue;
                }
                Err(failure) => {
                    if failure.is_answer() {
                        entry.set(Trace::Nothing);
                    }
                    return Err(failure.of_a_request());
                }
            };
            let node = Node {
                session: self.session.clone(),
                path: format!("{path}{sequence}").into(),
                czxid: stat.czxid,
            };
            entry.set(Trace::Place(node.clone(), None));
            let nodes = listed.map_err(Failure::with_traces)?;
            let nodes = self.without_older(&node, nodes).await.map_err(Failure::with_traces)?;
            return Ok((node, nodes));
        }
        Err(Failure::Client(Error::NoNode).without_effect())
    }

    /// Removes what the claim has left from a session before, and leaves it out.
    async fn without_older(
        &self,
        node: &Node,
        mut nodes: Vec<String>,
    ) -> Result<Vec<String>, Failure> {
        for older in self.own(&nodes).filter(|name| *name != node.name()) {
            self.delete(&[&self.folder, "/", older].concat()).await?;
        }
        let prefix = self.layout.prefix(self.claim.owner());
        nodes.retain(|name| name == node.name() || !name.starts_with(&prefix));
        Ok(nodes)
    }

    /// The node whose creation was not answered, if it came to be, and the queue.
    ///
    /// Nothing that was sent before can land later: the servers take the requests of a session in
    /// order, and refuse those that come by a way that the session has left.
    async fn adopt(&self) -> Result<Option<(Node, Vec<String>)>, Failure> {
        let nodes = self.list_synced().await?;
        let mut adopted: Option<Node> = None;
        for name in self.own(&nodes) {
            let path = [&self.folder, "/", name].concat();
            let stat =
                self.session.read(self.limit, self.session.client().check_stat(&path)).await?;
            match stat {
                Some(stat) if stat.ephemeral_owner == self.session.id() && adopted.is_none() => {
                    adopted = Some(Node {
                        session: self.session.clone(),
                        path: path.into(),
                        czxid: stat.czxid,
                    });
                }
                // Of a session that is about to end, and takes its node along.
                Some(_) => self.delete(&path).await?,
                None => (),
            }
        }
        let Some(node) = adopted else { return Ok(None) };
        let nodes = self.without_older(&node, nodes).await?;
        Ok(Some((node, nodes)))
    }

    /// Whether the claim's node is the first.
    async fn judge(
        &self,
        entry: &Entry,
        node: Node,
        nodes: Vec<String>,
    ) -> Result<Attempt, DriverError> {
        let queue = match self.layout.queue(nodes) {
            Ok(queue) => queue,
            Err(failure) => {
                // Where there is something else, nothing of ours is to stay.
                self.delete(&node.path).await.map_err(Failure::with_traces)?;
                entry.set(Trace::Nothing);
                return Err(failure.of_a_request());
            }
        };
        match queue.iter().position(|contender| contender.node == node.name()) {
            Some(0) => self.grant(entry, node),
            Some(at) if self.claim.waits() => {
                let path = [&self.folder, "/", &queue[at - 1].node].concat().into();
                entry.set(Trace::Place(node, Some(Ahead { path, holds: at == 1 })));
                Ok(Attempt::Taken(Taken::new()))
            }
            Some(_) => {
                self.delete(&node.path).await.map_err(Failure::with_traces)?;
                entry.set(Trace::Nothing);
                Ok(Attempt::Taken(Taken::new()))
            }
            None => Err(Failure::Removed.with_traces()),
        }
    }

    fn grant(&self, entry: &Entry, node: Node) -> Result<Attempt, DriverError> {
        let grant = grant(&node)?;
        entry.set_hold(node, self.sessions.losses());
        Ok(Attempt::Granted(grant))
    }

    /// Removes whatever the claim has.
    pub(crate) async fn release(&self, entry: Option<&Entry>) -> Result<Release, DriverError> {
        let (node, held) = match entry.map(Entry::trace) {
            Some(Trace::Hold(node)) => (node, true),
            Some(Trace::Place(node, _)) => (node, false),
            _ => return self.sweep().await,
        };
        if !is_same(&node.session, &self.session) {
            return self.sweep().await;
        }
        let was_leaving = entry.is_some_and(Entry::leaves);
        let path = &node.path;
        let delete = self.session.send(|| self.session.client().delete(path, None));
        match self.session.write(self.limit, delete).await {
            Ok(()) if held => Ok(Release::Freed),
            // An earlier delete may have done it.
            Err(failure) if failure.is_no_node() && held && was_leaving => Ok(Release::Freed),
            Ok(()) => Ok(Release::NotHeld),
            Err(failure) if failure.is_no_node() => Ok(Release::NotHeld),
            Err(failure) => Err(failure.of_a_request()),
        }
    }

    /// Removes what the claim may have left, in whatever session.
    async fn sweep(&self) -> Result<Release, DriverError> {
        let nodes = match self.list_synced().await {
            Ok(nodes) => nodes,
            Err(failure) if failure.is_no_node() => return Ok(Release::NotHeld),
            Err(failure) => return Err(failure.of_a_request()),
        };
        for name in self.own(&nodes) {
            let path = [&self.folder, "/", name].concat();
            self.delete(&path).await.map_err(Failure::of_a_request)?;
        }
        Ok(Release::NotHeld)
    }

    fn own<'n>(&self, nodes: &'n [String]) -> impl Iterator<Item = &'n String> + use<'n> {
        let prefix = self.layout.prefix(self.claim.owner());
        nodes.iter().filter(move |name| name.starts_with(&prefix))
    }

    async fn list(&self) -> Result<Vec<String>, Failure> {
        let list = self.session.client().list_children(&self.folder);
        match self.session.read(self.limit, list).await {
            Err(failure) if failure.is_no_node() => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// The nodes there are when the leader is asked, or later: a server that follows may be
    /// behind.
    async fn list_synced(&self) -> Result<Vec<String>, Failure> {
        let client = self.session.client();
        let (synced, listed) = (client.sync(&self.folder), client.list_children(&self.folder));
        let (synced, listed) = tokio::join!(
            self.session.read(self.limit, synced),
            self.session.read(self.limit, listed)
        );
        synced?;
        match listed {
            Err(failure) if failure.is_no_node() => Ok(Vec::new()),
            listed => listed,
        }
    }

    async fn delete(&self, path: &str) -> Result<(), Failure> {
        delete(&self.session, path, self.limit).await
    }

    /// Makes what is missing above the nodes, as containers, which the servers remove when they
    /// have become empty.
    async fn make_folder(&self) -> Result<(), Failure> {
        let acls = self.sessions.endpoint().acls();
        let make = |mode: CreateMode| {
            let client = self.session.client();
            async move { client.mkdir(&self.folder, &mode.with_acls(acls)).await }
        };
        match self.session.read(self.limit, make(CreateMode::Container)).await {
            // Before ZooKeeper 3.5.3.
            Err(Failure::Client(Error::Unimplemented)) => {
                self.session.read(self.limit, make(CreateMode::Persistent)).await
            }
            made => made,
        }
    }
}

/// Removes a node, if there is one.
pub(crate) async fn delete(session: &Session, path: &str, limit: Limit) -> Result<(), Failure> {
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
    let token = u64::try_from(czxid).ok().and_then(FencingToken::new);
    token.ok_or_else(|| {
        let source = format!("{czxid} is no number of a transaction");
        DriverError::new(ErrorKind::Misconfigured, source)
    })
}

/// Whether the node is there when the leader is asked, or later.
pub(crate) async fn stands(session: &Session, node: &Node, limit: Limit) -> Result<bool, Failure> {
    let (client, path) = (session.client(), &node.path);
    let (synced, stat) = (client.sync(path), client.check_stat(path));
    let (synced, stat) = tokio::join!(session.read(limit, synced), session.read(limit, stat));
    synced?;
    Ok(stat?.is_some_and(|stat| stat.czxid == node.czxid))
}
