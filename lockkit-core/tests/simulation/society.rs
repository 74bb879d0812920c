//! Who believes in which hold, and whether they may.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::driver::OwnerId;
use lockkit_core::{FencedCell, FencingToken, Hold};
use tokio::time::sleep;

use crate::network::Network;

/// What is true of a whole world, and who believes what in it.
pub(crate) struct Society {
    pub(crate) network: Arc<Network>,
    pub(crate) names: Vec<String>,
    pub(crate) ttl: Duration,
    /// Whether nothing goes wrong: then nothing may fail or be lost.
    pub(crate) is_calm: bool,
    beliefs: Mutex<Beliefs>,
    /// What each lock is for: whoever writes shows the token.
    pub(crate) effects: BTreeMap<String, Effects>,
}

type Effects = Arc<FencedCell<Vec<(FencingToken, OwnerId)>>>;

#[derive(Default)]
struct Beliefs {
    /// By name, and then by who believes.
    held: BTreeMap<String, BTreeMap<u64, Hold>>,
    /// The highest token that anybody was given, by name.
    highest: BTreeMap<String, FencingToken>,
    last: u64,
}

impl Society {
    pub(crate) fn new(
        network: Arc<Network>,
        names: Vec<String>,
        ttl: Duration,
        is_calm: bool,
    ) -> Arc<Self> {
        let cell = |name: &String| (name.clone(), Arc::new(FencedCell::new(Vec::new())));
        let effects = names.iter().map(cell).collect();
        let beliefs = Mutex::default();
        Arc::new(Self { network, names, ttl, is_calm, beliefs, effects })
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.network.history.count(what);
    }

    pub(crate) fn violation(&self, what: impl Into<String>) {
        self.network.history.violation(what);
    }

    /// What no write may show, whatever came late.
    pub(crate) fn check_effects(&self) {
        for (name, cell) in &self.effects {
            cell.read(|writes| {
                for pair in writes.windows(2) {
                    let ((before, one), (after, other)) = (pair[0], pair[1]);
                    if before > after || before == after && one != other {
                        self.violation(format!(
                            "{name}: {one} and then {other} wrote out of order"
                        ));
                    }
                }
            });
        }
    }

    /// The highest token that anybody was given.
    pub(crate) fn highest(&self, name: &str) -> Option<FencingToken> {
        self.beliefs.lock().unwrap().highest.get(name).copied()
    }

    /// Judges a grant that was just handed out, and has whoever got it believe in it.
    pub(crate) fn believe(
        self: &Arc<Self>,
        name: &str,
        hold: Hold,
        highest_before: Option<FencingToken>,
        is_reentry: bool,
    ) -> Belief {
        let owner = hold.owner();
        let (tokens, wronged) = self.network.at_server(|server, _| {
            let ledger = &server.ledger;
            (ledger.grants.get(&owner).cloned().unwrap_or_default(), ledger.wronged.clone())
        });
        let mut beliefs = self.beliefs.lock().unwrap();
        self.network.history.note(|| format!("{name} is {owner}'s: {:?}", hold.fencing_token()));
        let is_wronged = wronged.contains(&owner);
        match hold.fencing_token() {
            None => self.violation(format!("{owner} has no token")),
            Some(token) if !tokens.contains(&token) => {
                self.violation(format!("{owner} has token {token}, which nobody granted"));
            }
            Some(token) if tokens.last() != Some(&token) && !is_wronged => {
                self.violation(format!("{owner} has token {token} of a grant before its last"));
            }
            Some(token) if !is_reentry && Some(token) <= highest_before => {
                self.violation(format!("{owner} has token {token}, and a later ask a lower one"));
            }
            Some(token) => {
                let highest = beliefs.highest.entry(name.into()).or_insert(token);
                *highest = token.max(*highest);
            }
        }
        beliefs.last += 1;
        let id = beliefs.last;
        let believers = beliefs.held.entry(name.into()).or_default();
        if hold.is_held() && !is_wronged {
            for other in believers.values() {
                let is_another = other.owner() != owner && !wronged.contains(&other.owner());
                if is_another && other.is_held() {
                    self.violation(format!("{name}: {} and {owner} both hold it", other.owner()));
                }
            }
        }
        believers.insert(id, hold.clone());
        tokio::spawn(Arc::clone(self).watch(hold));
        Belief { society: Arc::clone(self), name: name.into(), id }
    }

    /// Sees that a hold that has ended never comes back.
    async fn watch(self: Arc<Self>, hold: Hold) {
        hold.ended().await;
        for _ in 0..16 {
            sleep(self.ttl / 8).await;
            if hold.is_held() {
                return self.violation(format!("{} had ended, and is held again", hold.owner()));
            }
        }
    }
}

/// Ends when whoever believes lets go, or is no more.
pub(crate) struct Belief {
    society: Arc<Society>,
    name: String,
    id: u64,
}

impl Drop for Belief {
    fn drop(&mut self) {
        // Dropped in a panic as well.
        if let Ok(mut beliefs) = self.society.beliefs.lock()
            && let Some(believers) = beliefs.held.get_mut(&self.name)
        {
            believers.remove(&self.id);
        }
    }
}
