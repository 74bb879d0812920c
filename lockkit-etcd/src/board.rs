//! What is watched, for whom, and what they are to be told.

mod mailbox;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchFilterType, WatchOptions, WatchResponse};
use lockkit_core::driver::OwnerId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::mailbox::Mailbox;
pub(crate) use self::mailbox::News;
use crate::error::Failure;
use crate::queue::Ahead;

/// How long a watch is kept that nobody needs.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// How many such watches there are at most.
const MOST_LINGERING: usize = 64;

/// What is wrong where ids are not kept (<https://github.com/etcd-io/etcd/issues/12819>).
pub(crate) const RENUMBERED: &str =
    "watches get other ids than asked for, as from a grpc-proxy, and from etcd before 3.4";

/// Stands for when a key that is not there yet was created: whatever is known of it is about
/// another one.
pub(crate) const NOT_YET: i64 = i64::MAX;

/// What is watched for all who hold or wait, and the way to have it watched.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) state: Mutex<State>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

/// What the stream is to send about the watch with that id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Create(i64),
    Cancel(i64),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    last_id: i64,
    /// By the id of the watch. Boxed like the watches of owners, since half of a table is empty.
    wards: HashMap<i64, Box<Ward>>,
    /// The ids of those watches, by key.
    ids: HashMap<Key, i64>,
    /// How many of them nobody needs at present.
    lingering: usize,
    owners: HashMap<OwnerId, Box<Watches>>,
}

/// The name of a key, shared by whoever has the key and whoever has it watched.
pub(crate) type Key = Arc<[u8]>;

/// A key that is watched, once for all who need to know of it: whoever has it, and whoever is
/// behind it.
#[derive(Debug)]
struct Ward {
    key: Key,
    /// How far the cluster was when the server set up the watch; `None` until it has.
    begins_after: Option<i64>,
    /// Whether the stream has ended, and no watch has begun since.
    has_gap: bool,
    /// When the key was last deleted.
    deleted: i64,
    listeners: Vec<OwnerId>,
    /// Since when there have been none.
    unneeded_since: Option<Instant>,
}

/// What an owner has watched.
#[derive(Clone, Copy, Debug)]
struct Sight {
    /// The watch.
    id: i64,
    /// When the key was created: what was put there before is not ours.
    created: i64,
    /// How far the cluster was at the look that told of it.
    seen: i64,
}

/// What is watched for an owner.
#[derive(Debug, Default)]
struct Watches {
    own: Option<Sight>,
    ahead: Option<Sight>,
    /// Whether the one ahead is the first.
    ahead_holds: bool,
    mailbox: Mailbox,
}

impl Sight {
    fn is_gone(self, ward: &Ward) -> bool {
        ward.deleted > self.created
    }

    /// Whether the key may have been deleted between the look and the watch.
    fn may_have_missed(self, ward: &Ward) -> bool {
        ward.begins_after.is_some_and(|begins_after| begins_after > self.seen)
    }
}

impl Watches {
    /// Puts what there is to tell about that watch into the mailbox.
    fn look_at(&mut self, id: i64, wards: &HashMap<i64, Box<Ward>>) {
        let Some(ward) = wards.get(&id) else { return };
        let is_it = |sight: &Sight| sight.id == id;
        if let Some(own) = self.own.filter(is_it) {
            if own.is_gone(ward) {
                self.mailbox.put(News::Lost);
            } else if (self.ahead.is_some() || ward.has_gap) && own.may_have_missed(ward) {
                // A holder whose watch begins for the first time looks at its next renewal.
                self.mailbox.put(News::LookAgain);
            }
        }
        if let Some(ahead) = self.ahead.filter(is_it) {
            if ahead.is_gone(ward) {
                self.mailbox.put(match self.ahead_holds {
                    true if self.has_place(wards) => News::Granted,
                    // Whether the lock comes to the owner's key depends on whether that is there.
                    true => News::LookAgain,
                    false => News::Moved,
                });
            } else if ahead.may_have_missed(ward) {
                self.mailbox.put(News::LookAgain);
            }
        }
    }

    /// Whether the owner would have been told if its key had gone. Watches are told of in no common
    /// order, so this may be a moment behind. But a waiter loses its key only with its lease, when
    /// nothing is vouched for any more, or by somebody else's hand, of which it is told right
    /// after.
    fn has_place(&self, wards: &HashMap<i64, Box<Ward>>) -> bool {
        let own = self.own.filter(|own| own.created != NOT_YET);
        let ward = own.and_then(|own| Some((own, wards.get(&own.id)?)));
        ward.is_some_and(|(own, ward)| {
            ward.begins_after.is_some() && !own.may_have_missed(ward) && !own.is_gone(ward)
        })
    }
}

impl State {
    /// Takes note that the server has set up the watch after revision `begins_after`, and that the
    /// key was deleted at revision `deleted`.
    pub(crate) fn heard(&mut self, id: i64, begins_after: Option<i64>, deleted: Option<i64>) {
        let Some(ward) = self.wards.get_mut(&id) else { return };
        ward.begins_after = begins_after.or(ward.begins_after);
        ward.deleted = ward.deleted.max(deleted.unwrap_or(0));
        for owner in self.wards.get(&id).iter().flat_map(|ward| &ward.listeners) {
            if let Some(watches) = self.owners.get_mut(owner) {
                watches.look_at(id, &self.wards);
            }
        }
        if let Some(ward) = self.wards.get_mut(&id) {
            ward.has_gap &= ward.begins_after.is_none();
        }
    }

    /// Whether that watch is on this key, as it was created then.
    fn is_at(&self, sight: Sight, key: &Key, created: i64) -> bool {
        sight.created == created && self.ids.get(key) == Some(&sight.id)
    }

    /// Keeps this copy of the watched key's name, which its owner has in any case.
    fn share(&mut self, id: i64, key: Key) {
        if let Some(ward) = self.wards.get_mut(&id)
            && !Arc::ptr_eq(&ward.key, &key)
        {
            self.ids.remove(&key);
            self.ids.insert(Arc::clone(&key), id);
            ward.key = key;
        }
    }

    fn remove(&mut self, id: i64) -> Option<Box<Ward>> {
        let ward = self.wards.remove(&id)?;
        self.ids.remove(&ward.key);
        self.lingering -= usize::from(ward.unneeded_since.is_some());
        Some(ward)
    }

    /// Removes the watches that nobody has needed since a time that `is_over`; returns their ids.
    fn remove_lingering(&mut self, is_over: impl Fn(Instant) -> bool) -> Vec<i64> {
        let over = self.wards.iter().filter(|(_, ward)| ward.unneeded_since.is_some_and(&is_over));
        let ids: Vec<i64> = over.map(|(&id, _)| id).collect();
        ids.iter().for_each(|&id| _ = self.remove(id));
        ids
    }

    /// Tells the owner what is known of a watch by now.
    fn look_at(&mut self, owner: OwnerId, id: i64) {
        if let Some(watches) = self.owners.get_mut(&owner) {
            watches.look_at(id, &self.wards);
        }
    }

    pub(crate) fn mailbox(&mut self, owner: OwnerId) -> Option<&mut Mailbox> {
        self.owners.get_mut(&owner).map(|watches| &mut watches.mailbox)
    }
}

impl Board {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the owner's key, which was created at revision `created`.
    pub(crate) fn watch_own(&self, owner: OwnerId, key: impl Into<Key>, created: i64, seen: i64) {
        let state = &mut *self.state();
        let key = key.into();
        let known = state.owners.entry(owner).or_default().own;
        if let Some(own) = known.filter(|own| state.is_at(*own, &key, created)) {
            let seen = seen.max(own.seen);
            state.owners.entry(owner).or_default().own = Some(Sight { seen, ..own });
            return;
        }
        let id = self.listen(state, owner, &key);
        self.leave(state, owner, known.filter(|known| known.id != id));
        state.share(id, key);
        state.owners.entry(owner).or_default().own = Some(Sight { id, created, seen });
        state.look_at(owner, id);
    }

    /// The key just before the owner's, if it is watched and is the one that was created then.
    pub(crate) fn ahead(&self, owner: OwnerId, created: i64) -> Option<Ahead> {
        let state = self.state();
        let watches = state.owners.get(&owner)?;
        let sight = watches.ahead.filter(|ahead| ahead.created == created)?;
        let key = Arc::clone(&state.wards.get(&sight.id)?.key);
        Some(Ahead { key, created, holds: watches.ahead_holds })
    }

    /// Watches the key just before the owner's.
    pub(crate) fn watch_ahead(&self, owner: OwnerId, ahead: &Ahead, seen: i64) {
        let state = &mut *self.state();
        let known = state.owners.entry(owner).or_default().ahead;
        let is_known = known.is_some_and(|known| state.is_at(known, &ahead.key, ahead.created));
        let id = self.listen(state, owner, &ahead.key);
        self.leave(state, owner, known.filter(|known| known.id != id));
        let watches = state.owners.entry(owner).or_default();
        // Whoever has become the first stays so until it goes.
        watches.ahead_holds = ahead.holds || is_known && watches.ahead_holds;
        // The refusal voids what was told before.
        watches.mailbox.void();
        watches.ahead = Some(Sight { id, created: ahead.created, seen });
        let own = watches.own;
        state.look_at(owner, id);
        if let Some(own) = own {
            state.look_at(owner, own.id);
        }
    }

    /// Stops watching the key before the owner's, since the owner has the lock; whoever is behind
    /// has it next.
    pub(crate) fn granted(&self, owner: OwnerId) {
        let state = &mut *self.state();
        let Some(watches) = state.owners.get_mut(&owner) else { return };
        watches.mailbox.void();
        let (own, ahead) = (watches.own, watches.ahead.take());
        if let Some(own) = own
            && let Some(ward) = state.wards.get(&own.id)
        {
            // That the lock has come to it does not say that it still has it.
            if own.created != NOT_YET && own.may_have_missed(ward) {
                watches.mailbox.put(News::LookAgain);
            }
            for listener in &ward.listeners {
                let Some(watches) = state.owners.get_mut(listener) else { continue };
                let is_it = |ahead: Sight| (ahead.id, ahead.created) == (own.id, own.created);
                watches.ahead_holds |= watches.ahead.is_some_and(is_it);
            }
        }
        self.leave(state, owner, ahead);
    }

    /// Stops watching anything for the owner.
    pub(crate) fn forget(&self, owner: OwnerId) {
        let state = &mut *self.state();
        if let Some(watches) = state.owners.remove(&owner) {
            let Watches { own, ahead, .. } = *watches;
            self.leave(state, owner, own);
            self.leave(state, owner, ahead);
        }
    }

    /// The watch of this key, with the owner among those who listen.
    fn listen(&self, state: &mut State, owner: OwnerId, key: &Key) -> i64 {
        let id = match state.ids.get(key) {
            Some(&id) => id,
            None => {
                state.last_id += 1;
                let id = state.last_id;
                let ward = Ward {
                    key: Arc::clone(key),
                    begins_after: None,
                    has_gap: false,
                    deleted: 0,
                    listeners: Vec::with_capacity(2),
                    unneeded_since: None,
                };
                state.wards.insert(id, Box::new(ward));
                state.ids.insert(Arc::clone(key), id);
                self.send(Command::Create(id));
                id
            }
        };
        if let Some(ward) = state.wards.get_mut(&id) {
            if ward.unneeded_since.take().is_some() {
                state.lingering -= 1;
            }
            if !ward.listeners.contains(&owner) {
                ward.listeners.push(owner);
            }
        }
        id
    }

    /// Removes the owner from those who listen to a watch.
    fn leave(&self, state: &mut State, owner: OwnerId, sight: Option<Sight>) {
        let Some(Sight { id, .. }) = sight else { return };
        let Some(ward) = state.wards.get_mut(&id) else { return };
        ward.listeners.retain(|listener| *listener != owner);
        if !ward.listeners.is_empty() {
            return;
        }
        if ward.begins_after.is_some() && state.lingering < MOST_LINGERING {
            ward.unneeded_since = Some(Instant::now());
            state.lingering += 1;
        } else {
            state.remove(id);
            self.send(Command::Cancel(id));
        }
    }

    /// Sets up anew a watch that has ended, and has those who listen to it look again.
    pub(crate) fn renew(&self, state: &mut State, id: i64) {
        let Some(ward) = state.remove(id) else { return };
        let Ward { key, listeners, .. } = *ward;
        for owner in listeners {
            let new = self.listen(state, owner, &key);
            // What happens before the new watch stands is seen by another look only.
            if let Some(ward) = state.wards.get_mut(&new) {
                ward.has_gap = true;
            }
            let Some(watches) = state.owners.get_mut(&owner) else { continue };
            for sight in [&mut watches.own, &mut watches.ahead].into_iter().flatten() {
                if sight.id == id {
                    sight.id = new;
                }
            }
            watches.mailbox.put(News::LookAgain);
        }
    }

    /// Takes note that the server refuses to set up a watch, which it is asked for again later.
    /// Those who listen look again, and are told the reason then.
    pub(crate) fn refused(&self, id: i64) {
        let state = &mut *self.state();
        let Some(ward) = state.wards.get_mut(&id) else { return };
        ward.has_gap = true;
        for owner in &ward.listeners {
            if let Some(watches) = state.owners.get_mut(owner) {
                watches.mailbox.put(News::LookAgain);
            }
        }
    }

    fn send(&self, command: Command) {
        // Without the task there is no news, and whoever waits polls.
        _ = self.commands.send(command);
    }

    /// Whether nobody needs any watch.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        state.wards.len() == state.lingering
    }

    /// All that is to be watched on a new stream. What is in the inbox by then says nothing more,
    /// and is dropped: a watch that is created twice would end the stream.
    pub(crate) fn all(&self, inbox: &mut mpsc::UnboundedReceiver<Command>) -> VecDeque<Command> {
        // Commands are sent under the lock.
        let state = self.state();
        while inbox.try_recv().is_ok() {}
        state.wards.keys().map(|&id| Command::Create(id)).collect()
    }

    /// Takes note that the stream has ended, and all watches with it.
    pub(crate) fn fall(&self) {
        let mut state = self.state();
        state.remove_lingering(|_| true);
        for ward in state.wards.values_mut() {
            // The next stream may be one of a cluster that was restored, and counts from less.
            (ward.begins_after, ward.has_gap, ward.deleted) = (None, true, 0);
        }
    }

    pub(crate) fn has_lingering(&self) -> bool {
        self.state().lingering > 0
    }

    /// The watches that have lingered for long enough.
    pub(crate) fn sweep(&self) -> Vec<Command> {
        let ids = self.state().remove_lingering(|since| since.elapsed() >= LINGER);
        ids.into_iter().map(Command::Cancel).collect()
    }

    pub(crate) fn target(&self, id: i64) -> Option<(Key, WatchOptions)> {
        // Nobody asks whether a key was put.
        let options = WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut]);
        self.state().wards.get(&id).map(|ward| (Arc::clone(&ward.key), options))
    }

    /// Tells what the server says. If it says that it has set up a watch, that is the one that was
    /// `asked` for the longest ago: it answers in order.
    pub(crate) fn deliver(
        &self,
        message: &WatchResponse,
        asked: Option<i64>,
    ) -> Result<(), Failure> {
        let id = message.watch_id();
        let mut state = self.state();
        if message.canceled() {
            let refused = || Err(Failure::WatchRefused(message.cancel_reason().into()));
            // A watch that was refused from the start has no id.
            if message.created() && message.compact_revision() == 0 {
                return refused();
            }
            // What was given up is no longer a ward, and what lingers is missed by nobody.
            if state.wards.get(&id).is_none_or(|ward| ward.listeners.is_empty()) {
                _ = state.remove(id);
                return Ok(());
            }
            if message.compact_revision() == 0 {
                return refused();
            }
            // The watch was so far behind that what it missed is no longer there.
            self.renew(&mut state, id);
            return Ok(());
        }
        if message.created() && asked != Some(id) {
            return Err(Failure::WatchRefused(RENUMBERED.into()));
        }
        let Some(key) = state.wards.get(&id).map(|ward| Arc::clone(&ward.key)) else {
            return Ok(());
        };
        let deleted = message.events().iter().filter(|it| it.event_type() == EventType::Delete);
        // Where ids are not kept, this may be heard before it is found out.
        let deleted = deleted.filter_map(|event| event.kv().filter(|kv| kv.key() == &*key));
        let deleted = deleted.map(KeyValue::mod_revision).max();
        let begins_after = message.header().map_or(i64::MAX, |header| header.revision());
        state.heard(id, message.created().then_some(begins_after), deleted);
        Ok(())
    }
}
