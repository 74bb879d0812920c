//! Waiting by push: each node tells of what was released there, and what a majority of them tells
//! is news.
//!
//! A claim that waits listens at each node that refuses it. Nothing is handed over: the nodes would
//! hand one lock to several claims, a part of it to each. Of the claims that listen, a node tells
//! one, which asks all nodes as ever. A claim that hears of a release from a majority asks at once.
//! Where nodes tell several, a claim that hears of it from fewer leaves the others a moment and
//! then asks: it may be the only one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkit_core::driver::{Change, Claim, OwnerId, Taken, pause_among, spread};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::driver::Quorum;

/// How long to stay out of the way of others, at most: the first time, and ever.
const WINDOWS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// How long those who wait may go without asking if a node does not say.
const PAUSE: Duration = Duration::from_secs(1);

/// The claim as the nodes get it: they hand it nothing.
pub(crate) fn as_asked_of_nodes(claim: &Claim) -> Claim {
    let waits = claim.waits();
    let claim = claim.clone().not_waiting();
    if waits { claim.listening() } else { claim }
}

/// How long claims that were refused may go without asking, when so many wait. More can be lost on
/// the way than from one node.
pub(crate) fn ask_within<'a>(
    refusals: impl Iterator<Item = &'a Taken>,
    waiting: usize,
) -> Duration {
    // A node that does say goes by how many wait there, and they are the same.
    let said = refusals.filter_map(Taken::asks_within).min().unwrap_or(PAUSE);
    said.max(pause_among(PAUSE, waiting)) / 10
}

/// The claims that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<HashMap<OwnerId, Arc<Waiter>>>);

impl Waiters {
    pub(crate) fn find(&self, owner: OwnerId) -> Option<Arc<Waiter>> {
        self.all().get(&owner).cloned()
    }

    /// Returns how many wait by now.
    pub(crate) fn join(&self, owner: OwnerId, waiter: &Arc<Waiter>) -> usize {
        let mut all = self.all();
        all.insert(owner, Arc::clone(waiter));
        all.len()
    }

    pub(crate) fn leave(&self, owner: OwnerId) {
        self.all().remove(&owner);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Waiter>>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a claim that waits has heard since it asked last.
#[derive(Debug)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    /// Told when there is one place more.
    placed: Notify,
}

#[derive(Debug)]
struct State {
    places: Vec<Place>,
    /// When to ask because of what was heard.
    due: Option<Instant>,
    /// How long to stay out of the way of others, at most.
    window: Duration,
}

/// What a claim has at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    Waits,
    /// The lock was released there.
    Told,
}

impl Waiter {
    pub(crate) fn new(nodes: usize) -> Self {
        let places = vec![Place::None; nodes];
        let state = State { places, due: None, window: WINDOWS.0 };
        Self { state: Mutex::new(state), placed: Notify::new() }
    }

    /// Takes note that it is about to ask, which makes up for what was heard before.
    pub(crate) fn asks(&self) {
        let mut state = self.state();
        state.places.fill(Place::None);
        state.due = None;
    }

    /// Takes note that a node has refused it.
    pub(crate) fn is_placed(&self, at: usize) {
        self.state().places[at] = Place::Waits;
        self.placed.notify_one();
    }

    /// Takes note that its round came to nothing, after so long. If it was granted a part, it is
    /// one of several that were in one another's way, or the holder is not known everywhere: then
    /// returns how soon to try again.
    pub(crate) fn is_refused(&self, granted: usize, took: Duration) -> Option<Duration> {
        let mut state = self.state();
        let first = WINDOWS.0.max(took).min(WINDOWS.1);
        if granted == 0 {
            state.window = first;
            return None;
        }
        state.window = (2 * state.window).clamp(first, WINDOWS.1);
        Some(spread(state.window))
    }

    /// Takes note that a node has told of a release.
    fn hears(&self, at: usize, quorum: usize) {
        let mut state = self.state();
        state.places[at] = Place::Told;
        let told = state.places.iter().filter(|place| **place == Place::Told).count();
        let now = Instant::now();
        let later = now + spread(state.window);
        state.due = Some(if told >= quorum { now } else { state.due.unwrap_or(later) });
    }

    fn due(&self) -> Option<Instant> {
        self.state().due
    }

    /// The nodes to listen to, besides those that it listens to already.
    fn unheard(&self, listens: &mut [bool]) -> Vec<usize> {
        let state = self.state();
        let is_unheard = |&at: &usize| {
            state.places[at] == Place::Waits && !std::mem::replace(&mut listens[at], true)
        };
        (0..state.places.len()).filter(is_unheard).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quorum {
    /// Resolves when it is worth asking again.
    ///
    /// Cancel-safe: what a node tells is noted when it is heard, and counts until the next ask.
    pub(crate) async fn changed(&self, claim: &Claim) -> Change {
        let Some(waiter) = self.waiters.find(claim.owner()) else {
            return std::future::pending().await;
        };
        let mut listens = vec![false; self.nodes.len()];
        let mut news = FuturesUnordered::new();
        loop {
            for at in waiter.unheard(&mut listens) {
                // The driver was there when the node refused.
                let Ok(driver) = self.nodes.members[at].driver() else { continue };
                news.push(async move {
                    driver.changed(&as_asked_of_nodes(claim)).await;
                    at
                });
            }
            let due = waiter.due();
            let is_due = async {
                match due {
                    Some(due) if due <= Instant::now() => (),
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(at) = news.next() => waiter.hears(at, self.nodes.quorum()),
                () = is_due => return Change::AskAgain,
                () = waiter.placed.notified() => (),
            }
        }
    }
}
