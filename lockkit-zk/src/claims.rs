//! What each claim of this driver has at the servers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Claim, OwnerId};
use tokio::time::Instant;

use crate::session::Session;
use crate::watch::Watch;

/// The claims that have, or may have, a node.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<OwnerId, Arc<Entry>>>);

/// One claim.
#[derive(Debug)]
pub(crate) struct Entry {
    claim: Claim,
    state: Mutex<State>,
    /// What `changed` listens to, kept from one call to the next.
    pub(crate) watch: tokio::sync::Mutex<Option<Watch>>,
}

#[derive(Debug)]
struct State {
    trace: Trace,
    /// When it was last asked for.
    asked: Instant,
    /// How many losses of the connection its holder was told of.
    losses: u64,
    /// Whether a delete was sent and not answered.
    is_leaving: bool,
    /// Whether its node still tells when it was asked for, and not when it was granted.
    is_dated: bool,
}

/// What there is of a claim at the servers.
#[derive(Clone, Debug)]
pub(crate) enum Trace {
    Nothing,
    /// A create was sent in that session and not answered.
    Doubt(Arc<Session>),
    /// A node that is not the first.
    Place(Node, Option<Ahead>),
    /// A node that is the first.
    Hold(Node),
}

/// A node of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// In which it was made, and with which it ends.
    pub(crate) session: Arc<Session>,
    pub(crate) path: Arc<str>,
    /// The number of the transaction that made it.
    pub(crate) czxid: i64,
    pub(crate) first: First,
}

/// Whether a node is known to be the first of its queue, or to have been. From then on nothing comes
/// before it: the servers put each new node behind all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct First(Arc<AtomicBool>);

/// The node before that of a claim, when it was last looked for.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) path: Arc<str>,
    pub(crate) first: First,
}

impl First {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Node {
    pub(crate) fn new(session: Arc<Session>, path: impl Into<Arc<str>>, czxid: i64) -> Self {
        Self { session, path: path.into(), czxid, first: First::default() }
    }

    /// What it is called among those of the lock.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }
}

impl Claims {
    /// The claim's, a new one if it has none.
    pub(crate) fn enter(&self, claim: &Claim) -> Arc<Entry> {
        let make = || Arc::new(Entry::new(claim.clone()));
        self.all().entry(claim.owner()).or_insert_with(make).clone()
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<Arc<Entry>> {
        self.all().get(&owner).cloned()
    }

    pub(crate) fn remove(&self, owner: OwnerId) {
        self.all().remove(&owner);
    }

    /// Those that wait and have not asked for a lease's time.
    pub(crate) fn abandoned(&self) -> Vec<Arc<Entry>> {
        let is_abandoned = |entry: &&Arc<Entry>| {
            let state = entry.state();
            matches!(state.trace, Trace::Place(..)) && state.asked.elapsed() > entry.claim.ttl()
        };
        self.all().values().filter(is_abandoned).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Entry>>> {
        // No step under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hold(&mut self, node: Node, losses: u64) {
        self.is_dated |= matches!(self.trace, Trace::Place(_, Some(_)));
        node.first.set();
        self.trace = Trace::Hold(node);
        self.is_leaving = false;
        self.losses = losses;
    }
}

impl Entry {
    fn new(claim: Claim) -> Self {
        let trace = Trace::Nothing;
        let state =
            State { trace, asked: Instant::now(), losses: 0, is_leaving: false, is_dated: false };
        Self { claim, state: Mutex::new(state), watch: tokio::sync::Mutex::default() }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn trace(&self) -> Trace {
        self.state().trace.clone()
    }

    /// The node that was made, whether it is the first or not.
    pub(crate) fn node(&self) -> Option<Node> {
        match &self.state().trace {
            Trace::Place(node, _) | Trace::Hold(node) => Some(node.clone()),
            Trace::Nothing | Trace::Doubt(_) => None,
        }
    }

    /// The node, if it is known to be the first.
    pub(crate) fn hold(&self) -> Option<Node> {
        match &self.state().trace {
            Trace::Hold(node) => Some(node.clone()),
            Trace::Nothing | Trace::Doubt(_) | Trace::Place(..) => None,
        }
    }

    /// In which session it waits, and for the end of what.
    pub(crate) fn place(&self) -> Option<(Arc<Session>, Arc<str>)> {
        match &self.state().trace {
            Trace::Place(node, Some(ahead)) => Some((node.session.clone(), ahead.path.clone())),
            Trace::Nothing | Trace::Doubt(_) | Trace::Place(_, None) | Trace::Hold(_) => None,
        }
    }

    /// What was ahead of its node is gone, or cannot be watched: somebody else may be the first.
    pub(crate) fn moves(&self, node: Node) {
        let mut state = self.state();
        state.trace = Trace::Place(node, None);
        (state.is_leaving, state.is_dated) = (false, true);
    }

    pub(crate) fn set(&self, trace: Trace) {
        let mut state = self.state();
        state.trace = trace;
        state.is_leaving = false;
    }

    /// Gives up a place that was not asked for during a lease. Returns its node, which is to be
    /// removed: from then on, nobody takes it for the first.
    pub(crate) fn abandon(&self) -> Option<Node> {
        let mut state = self.state();
        let Trace::Place(node, _) = state.trace.clone() else { return None };
        if state.asked.elapsed() <= self.claim.ttl() {
            return None;
        }
        state.trace = Trace::Doubt(node.session.clone());
        Some(node)
    }

    /// Its node, which was there when it was looked at, is the first, unless it was given up
    /// meanwhile. Says whether it holds now. Where it was not the first, once, the servers do not know
    /// since when it is.
    pub(crate) fn advance(&self, node: Node, losses: u64) -> bool {
        let mut state = self.state();
        let stands = matches!(
            &state.trace,
            Trace::Place(known, _) | Trace::Hold(known) if known.czxid == node.czxid
        );
        if stands {
            state.hold(node, losses);
        }
        stands
    }

    /// Forgets that it may have left something, if it has not asked again since.
    pub(crate) fn has_left(&self) -> bool {
        let mut state = self.state();
        let has_left = matches!(state.trace, Trace::Doubt(_));
        if has_left {
            state.trace = Trace::Nothing;
        }
        has_left
    }

    /// Says once that the node is to be written to, so that it tells when it was granted.
    pub(crate) fn is_to_be_dated(&self) -> bool {
        std::mem::take(&mut self.state().is_dated)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.state().trace, Trace::Nothing)
    }

    /// It is asked for now.
    pub(crate) fn asks(&self) {
        self.state().asked = Instant::now();
    }

    /// A delete of its node is sent. Says whether one was before and was not answered.
    pub(crate) fn leaves(&self) -> bool {
        std::mem::replace(&mut self.state().is_leaving, true)
    }

    pub(crate) fn losses(&self) -> u64 {
        self.state().losses
    }

    /// Its holder knows of so many losses of the connection.
    pub(crate) fn set_losses(&self, losses: u64) {
        self.state().losses = losses;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
