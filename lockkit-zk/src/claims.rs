//! What each claim of this driver has at the servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::driver::{Claim, OwnerId};
use tokio::time::Instant;

use crate::rank::Rank;
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
    /// When it was last asked for, granted or renewed.
    asked: Instant,
    /// Whether what it has is being removed, unless it is asked for again meanwhile.
    is_given_up: bool,
    /// How many losses of the connection its holder has been told of.
    losses: u64,
    /// Whether a delete was sent and not answered.
    is_leaving: bool,
    /// Whether its node still tells when the lock was asked for, not when it was granted.
    is_dated: bool,
}

/// What there is of a claim at the servers.
#[derive(Clone, Debug)]
pub(crate) enum Trace {
    Nothing,
    /// A create was sent in this session and not answered.
    Doubt(Arc<Session>),
    /// A node that is not the first.
    Place(Node, Option<Ahead>),
    /// A node that is the first.
    Hold(Node),
}

/// A node of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The session in which it was made, and with which it ends.
    pub(crate) session: Arc<Session>,
    pub(crate) path: Arc<str>,
    /// The number of the transaction that made it.
    pub(crate) czxid: i64,
    pub(crate) rank: Rank,
}

/// The node before that of a claim, as it was when last looked for.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) path: Arc<str>,
    pub(crate) rank: Rank,
}

impl Node {
    /// A node that was made just now.
    pub(crate) fn new(session: Arc<Session>, path: impl Into<Arc<str>>, czxid: i64) -> Self {
        Self { session, path: path.into(), czxid, rank: Rank::of_place() }
    }

    /// Its name among the nodes of the lock.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }
}

impl Claims {
    /// The entry of a claim that asks now; a new one if it has none.
    pub(crate) fn enter(&self, claim: &Claim) -> Arc<Entry> {
        let make = || Arc::new(Entry::new(claim.clone()));
        let mut all = self.all();
        let entry = all.entry(claim.owner()).or_insert_with(make);
        entry.asks();
        entry.clone()
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<Arc<Entry>> {
        self.all().get(&owner).cloned()
    }

    pub(crate) fn remove(&self, owner: OwnerId) {
        let removed = self.all().remove(&owner);
        if let Some(entry) = removed {
            entry.state().moves_on();
        }
    }

    /// Forgets a claim that was given up and of which nothing is left, unless it has asked again
    /// since.
    pub(crate) fn forget(&self, entry: &Entry) {
        let mut all = self.all();
        let state = entry.state();
        if state.is_given_up && matches!(state.trace, Trace::Doubt(_)) {
            all.remove(&entry.claim.owner());
        }
    }

    /// The claims that nobody has asked for, or renewed, for so long that their keeper must be gone.
    pub(crate) fn abandoned(&self) -> Vec<Arc<Entry>> {
        let is_abandoned = |entry: &&Arc<Entry>| entry.is_abandoned(&entry.state());
        self.all().values().filter(is_abandoned).cloned().collect()
    }

    /// The session has ended, so no claim waits as it did.
    pub(crate) fn move_on(&self) {
        for entry in self.all().values() {
            entry.state().moves_on();
        }
    }

    /// Forgets all claims that do not hold.
    pub(crate) fn keep_holds(&self) {
        self.all().retain(|_, entry| {
            entry.state().moves_on();
            entry.hold().is_some()
        });
    }

    pub(crate) fn clear(&self) {
        for (_, entry) in self.all().drain() {
            entry.state().moves_on();
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Entry>>> {
        // No step under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hold(&mut self, node: Node, losses: u64) {
        self.is_dated |= matches!(self.trace, Trace::Place(_, Some(_)));
        node.rank.set_first();
        self.turn_to(Trace::Hold(node));
        self.is_leaving = false;
        self.losses = losses;
        self.asked = Instant::now();
    }

    fn turn_to(&mut self, trace: Trace) {
        let node = match (&self.trace, &trace) {
            (Trace::Place(node, _), Trace::Place(same, _)) if node.czxid == same.czxid => None,
            (Trace::Place(node, _), _) => Some(node),
            _ => None,
        };
        if let Some(node) = node {
            node.rank.moves_on();
        }
        self.trace = trace;
    }

    /// The claim no longer waits, or not for long.
    fn moves_on(&self) {
        if let Trace::Place(node, _) = &self.trace {
            node.rank.moves_on();
        }
    }
}

impl Entry {
    fn new(claim: Claim) -> Self {
        let trace = Trace::Nothing;
        let state = State {
            trace,
            asked: Instant::now(),
            is_given_up: false,
            losses: 0,
            is_leaving: false,
            is_dated: false,
        };
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

    /// The node just before it, if that one waits, too, and tells when it no longer does.
    pub(crate) fn waits_behind(&self) -> Option<Rank> {
        match &self.state().trace {
            Trace::Place(_, Some(ahead)) if ahead.rank.waits() => Some(ahead.rank.clone()),
            _ => None,
        }
    }

    /// The session in which it waits, and the node whose end it waits for.
    pub(crate) fn place(&self) -> Option<(Arc<Session>, Ahead)> {
        match &self.state().trace {
            Trace::Place(node, Some(ahead)) => Some((node.session.clone(), ahead.clone())),
            Trace::Nothing | Trace::Doubt(_) | Trace::Place(_, None) | Trace::Hold(_) => None,
        }
    }

    /// What was ahead of its node is gone, or cannot be watched: somebody else may be the first.
    pub(crate) fn moves(&self, node: Node) {
        let mut state = self.state();
        state.turn_to(Trace::Place(node, None));
        (state.is_leaving, state.is_dated) = (false, true);
    }

    pub(crate) fn set(&self, trace: Trace) {
        let mut state = self.state();
        state.turn_to(trace);
        state.is_leaving = false;
    }

    /// Gives up what is abandoned and is to be removed: from then on nobody takes its node for the
    /// first, not even an ask or a renewal that comes late. Returns what there was.
    pub(crate) fn abandon(&self) -> Option<Trace> {
        let mut state = self.state();
        let left = self.is_abandoned(&state).then(|| state.trace.clone())?;
        state.is_given_up = true;
        if let Trace::Place(node, _) | Trace::Hold(node) = &left {
            state.turn_to(Trace::Doubt(node.session.clone()));
        }
        Some(left)
    }

    /// Whether it was neither asked for nor renewed for a lease and, if it holds, for a session: by
    /// then nobody believes in the hold, since whatever vouched for it is over.
    fn is_abandoned(&self, state: &State) -> bool {
        let longest = match &state.trace {
            Trace::Nothing => return false,
            Trace::Place(..) | Trace::Doubt(_) => self.claim.ttl(),
            Trace::Hold(node) => self.claim.ttl().max(node.session.timeout()),
        };
        state.asked.elapsed() > longest
    }

    /// Notes that its node, which was there when it was looked at, is the first, unless the claim
    /// or its session was given up meanwhile. Returns whether it holds now. If the node was once not
    /// the first, the servers do not know since when it has been.
    pub(crate) fn advance(&self, node: Node, losses: u64) -> bool {
        let mut state = self.state();
        let is_it = matches!(
            &state.trace,
            Trace::Place(known, _) | Trace::Hold(known) if known.czxid == node.czxid
        );
        let stands = is_it && !state.is_given_up && !node.session.has_ended();
        if stands {
            state.hold(node, losses);
        }
        stands
    }

    /// Says once that its node is to be written to, so that the node tells when the lock was
    /// granted.
    pub(crate) fn is_to_be_dated(&self) -> bool {
        std::mem::take(&mut self.state().is_dated)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.state().trace, Trace::Nothing)
    }

    /// Notes that its hold is renewed now, if it has it still. What vouches for it was found out
    /// before, so that it is over when the hold counts as abandoned.
    pub(crate) fn renews(&self, node: &Node) -> bool {
        let mut state = self.state();
        let holds = matches!(&state.trace, Trace::Hold(held) if held.czxid == node.czxid);
        if holds {
            state.asked = Instant::now();
        }
        holds
    }

    /// Notes that it is asked for now.
    pub(crate) fn asks(&self) {
        let mut state = self.state();
        (state.asked, state.is_given_up) = (Instant::now(), false);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.state().is_given_up
    }

    /// Notes that a delete of its node is sent. Returns whether an earlier one was not answered.
    pub(crate) fn leaves(&self) -> bool {
        let mut state = self.state();
        state.moves_on();
        std::mem::replace(&mut state.is_leaving, true)
    }

    pub(crate) fn losses(&self) -> u64 {
        self.state().losses
    }

    /// Notes how many losses of the connection its holder knows of.
    pub(crate) fn set_losses(&self, losses: u64) {
        self.state().losses = losses;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
