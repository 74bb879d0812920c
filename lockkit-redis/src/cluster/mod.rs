//! Several servers, each of which has the keys of some slots.

pub(crate) mod news;
pub(crate) mod slots;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkit_core::driver::DriverError;
use redis::{ServerErrorKind, Value, cmd};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::slots::Map;
use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::request::{Request, Stage};
use crate::target::Target;

/// How long one member may take to say who has which slot.
const LIMIT: Duration = Duration::from_secs(1);
/// How many members are asked at once, if they are not many.
const ASKED_AT_ONCE: usize = 3;
/// How many may be silent one after the other: connecting has 5 seconds in all.
const MOST_IN_A_ROW: usize = 4;
/// How long to leave a slot alone that is being moved.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections to the members of a cluster: one to each that has keys of ours.
///
/// A request goes to the member that is known to have the slot of its keys, and on to the one that
/// this member names. Who has which slot is asked again whenever something was not as it was known
/// to be, or a connection has broken.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    supervisor: AbortOnDropHandle<()>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The members that the URL names.
    seeds: Vec<Endpoint>,
    map: watch::Sender<Arc<Map>>,
    nodes: Mutex<Nodes>,
    /// Told when it is in doubt who has which slot.
    doubt: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Nodes {
    open: Vec<Node>,
    closed: bool,
}

/// A member that has been asked something.
#[derive(Clone, Debug)]
struct Node {
    endpoint: Endpoint,
    connection: Arc<Connection>,
}

impl Cluster {
    /// Finds out who has which slot, with one attempt.
    pub(crate) async fn open(seeds: Vec<Endpoint>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            seeds,
            map: watch::Sender::new(Arc::new(Map::empty())),
            nodes: Mutex::default(),
            doubt: Arc::default(),
        });
        shared.refresh().await?;
        let supervisor = tokio::spawn(supervise(shared.clone()));
        Ok(Self { shared, supervisor: AbortOnDropHandle::new(supervisor) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The members that have slots, as they say now: whoever asks all of them for something does
    /// not hear from any that there is another.
    ///
    /// # Errors
    ///
    /// No member says who has which slot.
    pub(crate) async fn primaries(&self) -> Result<Vec<Endpoint>, DriverError> {
        self.shared.refresh().await.map_err(Failure::while_connecting)?;
        Ok(self.shared.map().primaries().to_vec())
    }

    /// How many slots nobody has, for all that is known.
    pub(crate) fn uncovered(&self) -> usize {
        self.shared.map().uncovered()
    }

    /// As [`Connection::call`], to whoever has the slot; without a slot, to any primary.
    pub(crate) async fn call(
        &self,
        request: &impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        let stage = Stage::default();
        let mut last = None;
        let calling = self.shared.send(request, limit, &stage, &mut last);
        let answer = match timeout(limit, calling).await {
            Ok(answer) => answer,
            Err(_) if stage.is_sent() => Err(Failure::NoAnswer(limit)),
            Err(_) if stage.had_no_turn(limit) => Err(Failure::NoTurn(limit)),
            Err(_) => Err(last.unwrap_or(Failure::NoConnection { limit, last: None })),
        };
        answer.map_err(|failure| {
            if failure.is_about_the_member() {
                self.shared.doubt();
            }
            failure.of_a_call()
        })
    }

    /// As [`Connection::call`], to one member.
    pub(crate) async fn call_at(
        &self,
        member: &Endpoint,
        request: &impl Request,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        match self.shared.node(member) {
            Ok(node) => node.call(request, limit).await,
            Err(failure) => Err(failure.of_a_call()),
        }
    }

    /// As [`Connection::place`], of the connection to one member.
    pub(crate) fn place_of(
        &self,
        member: &Endpoint,
    ) -> Result<watch::Receiver<Option<Endpoint>>, DriverError> {
        self.shared.node(member).map(|node| node.place()).map_err(Failure::of_a_call)
    }

    /// Closes all connections. Calls fail from now on.
    pub(crate) fn close(&self) {
        self.supervisor.abort();
        let mut nodes = self.shared.nodes();
        nodes.closed = true;
        nodes.open.drain(..).for_each(|node| node.connection.close());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Map>> {
        self.map.subscribe()
    }

    /// A member that was to have a slot does not have it, or does not answer.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Sends the request on until somebody carries it out. `last` says why nobody has, so far.
    async fn send(
        &self,
        request: &impl Request,
        limit: Duration,
        stage: &Stage,
        last: &mut Option<Failure>,
    ) -> Result<Value, Failure> {
        let began = Instant::now();
        // Where the last member has sent us, and whether only for this once.
        let mut sent_to: Option<(Endpoint, bool)> = None;
        loop {
            let map = self.map();
            let was_sent_on = sent_to.is_some();
            let (endpoint, asking) = match sent_to.take() {
                Some(told) => told,
                None => match owner(&map, request) {
                    Some(owner) => (owner.clone(), false),
                    None => {
                        *last = Some(Failure::NoOwner);
                        self.doubt();
                        self.pause(&map).await;
                        continue;
                    }
                },
            };
            stage.reset();
            let node = self.node(&endpoint)?;
            let left = limit.saturating_sub(began.elapsed());
            let failure = tokio::select! {
                biased;
                answer = node.attempt(request, left, stage, asking) => match answer {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                },
                () = self.leaves(&endpoint, request, stage), if !asking => match stage.is_sent() {
                    true => return Err(Failure::Deposed),
                    false => continue,
                },
            };
            let Failure::Redis(error) = &failure else { return Err(failure) };
            // In case it is sent again: should the time be up before that, it was not carried out.
            stage.reset();
            let is = |kind: ServerErrorKind| error.kind() == kind.into();
            match error.redirect_node() {
                Some((address, slot)) => {
                    let to = elsewhere(&endpoint, address).ok_or_else(|| failure.clone())?;
                    let is_once = is(ServerErrorKind::Ask);
                    if !is_once {
                        // The supervisor asks what else has moved with it.
                        self.learn(Arc::new(self.map().moved(slot, &to)));
                        self.doubt();
                    }
                    sent_to = Some((to, is_once));
                    // Should that member not be reached in time, this is not the reason.
                    if !was_sent_on {
                        continue;
                    }
                    // Two members that name each other have not both heard yet that a move has
                    // begun or ended.
                    *last = Some(Failure::SentOn(error.clone()));
                    sleep(PAUSE).await;
                    continue;
                }
                // Some keys of the slot have been moved already, or nobody has the slot for now:
                // nothing was done.
                None if is(ServerErrorKind::TryAgain) || failure.is_about_a_lost_key() => {
                    sleep(PAUSE).await;
                }
                None if is(ServerErrorKind::ClusterDown) || is(ServerErrorKind::MasterDown) => {
                    self.doubt();
                    self.pause(&map).await;
                }
                None => return Err(failure),
            }
            *last = Some(failure);
        }
    }

    /// Returns once the slot of the request is known to be another member's. What was sent is given
    /// up only when this member has no slot any more, as when it was replaced: whoever told of this
    /// slot may be behind, and a member that has other slots answers.
    async fn leaves(&self, endpoint: &Endpoint, request: &impl Request, stage: &Stage) {
        let mut map = self.map.subscribe();
        let has_left = |map: &Arc<Map>| match owner(map, request) {
            Some(_) if stage.is_sent() => !map.is_primary(endpoint),
            Some(owner) => !owner.is_where(endpoint),
            None => false,
        };
        // The sender lives as long as we do.
        _ = map.wait_for(has_left).await;
    }

    /// Waits a moment, or until more is known than this.
    async fn pause(&self, known: &Arc<Map>) {
        let mut map = self.map.subscribe();
        _ = timeout(5 * PAUSE, map.wait_for(|map| !Arc::ptr_eq(map, known))).await;
    }

    /// The connection to a member.
    fn node(&self, endpoint: &Endpoint) -> Result<Arc<Connection>, Failure> {
        let mut nodes = self.nodes();
        if nodes.closed {
            return Err(Failure::Closed);
        }
        let known = nodes.open.iter().find(|node| node.endpoint.is_where(endpoint));
        if let Some(node) = known {
            return Ok(node.connection.clone());
        }
        let target = Target::Server(endpoint.clone());
        let connection = Arc::new(Connection::on_demand(target, self.doubt.clone()));
        nodes.open.push(Node { endpoint: endpoint.clone(), connection: connection.clone() });
        Ok(connection)
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Nodes> {
        // Nothing panics while it holds the lock.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, new: Arc<Map>) {
        self.map.send_if_modified(|map| {
            let is_news = !map.is_the_same(&new);
            if is_news {
                *map = new;
            }
            is_news
        });
    }

    /// Asks members who has which slot, a few at once, until one knows the owner of every slot.
    async fn refresh(&self) -> Result<(), Failure> {
        let map = self.map();
        let mut members: Vec<&Endpoint> = Vec::new();
        for member in map.members().chain(&self.seeds) {
            if !members.iter().any(|known| known.is_where(member)) {
                members.push(member);
            }
        }
        // A member that is cut off may know no better; the next time, another one is asked.
        fastrand::shuffle(&mut members);
        let at_once = asked_at_once(members.len());
        let mut waiting = members.into_iter();
        let mut asked: FuturesUnordered<_> = waiting.by_ref().take(at_once).map(ask).collect();
        let mut last: Option<Failure> = None;
        let mut best: Option<Map> = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(map) => {
                    // A member that was forgotten or reset knows nobody, and answers at once.
                    let is_whole = map.uncovered() == 0;
                    if best.as_ref().is_none_or(|best| map.uncovered() < best.uncovered()) {
                        best = Some(map);
                    }
                    if is_whole {
                        break;
                    }
                }
                // That one is not a member says more than that another is down.
                Err(failure) if !last.as_ref().is_some_and(Failure::is_lasting) => {
                    last = Some(failure);
                }
                Err(_) => (),
            }
            asked.extend(waiting.next().map(ask));
        }
        let is_known = !map.primaries().is_empty();
        if let Some(new) = best.filter(|best| !(best.primaries().is_empty() && is_known)) {
            // What the URL calls a member and what it calls itself may be two addresses.
            self.nodes().open.retain(|node| new.is_primary(&node.endpoint));
            self.learn(Arc::new(new));
            return Ok(());
        }
        Err(last.unwrap_or(Failure::NoOwner))
    }
}

fn owner<'a>(map: &'a Map, request: &impl Request) -> Option<&'a Endpoint> {
    match request.slot() {
        Some(slot) => map.owner(slot),
        None => map.primaries().first(),
    }
}

fn asked_at_once(members: usize) -> usize {
    members.div_ceil(MOST_IN_A_ROW).max(ASKED_AT_ONCE)
}

/// Asks a member who has which slot.
async fn ask(member: &Endpoint) -> Result<Map, Failure> {
    let asking = async {
        let (mut connection, mut running) = member.connect().await?;
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        let told = tokio::select! {
            answer = connection.send_packed_command(&question) => answer?.extract_error()?,
            () = &mut running => return Err(Failure::Broken),
        };
        Map::told_by(member, redis::from_redis_value(told).map_err(redis::RedisError::from)?)
    };
    timeout(LIMIT, asking).await.unwrap_or(Err(Failure::NoAnswer(LIMIT)))
}

/// Where a redirection leads. It names no host if it means that of the member that sends it.
fn elsewhere(from: &Endpoint, address: &str) -> Option<Endpoint> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    Some(match host {
        "" | "?" => from.at_port(port),
        host => from.at(host, port),
    })
}

/// Asks again who has which slot, whenever that is in doubt.
async fn supervise(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        shared.doubt.notified().await;
        backoff.pause().await;
        if let Err(failure) = shared.refresh().await {
            tracing::debug!(%failure, "no member of the cluster says who has which slot");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LIMIT, asked_at_once};

    #[test]
    fn however_many_members_are_silent_connecting_ends_in_time() {
        for members in 1..200_usize {
            let in_a_row = members.div_ceil(asked_at_once(members));
            let takes = LIMIT * u32::try_from(in_a_row).unwrap();
            assert!(takes < Duration::from_secs(5), "{members} silent members take {takes:?}");
        }
        assert_eq!([1, 6, 12].map(asked_at_once), [3, 3, 3], "a few are not all asked at once");
    }
}
