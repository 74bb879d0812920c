//! What is watched, for whom, and what they are to be told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{EventType, WatchFilterType, WatchOptions, WatchResponse};
use lockkit_core::driver::OwnerId;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::error::Failure;

/// How long a watch is kept that nobody needs.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// How many of those there are at the most.
const MOST_LINGERING: usize = 64;

/// What there is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Something may have been missed.
    LookAgain,
    /// The one ahead has gone, and was not the first.
    Moved,
    /// The one ahead held the lock, and has gone.
    Granted,
    /// The own key is gone.
    Lost,
}

/// What all who hold or wait have watched, and the way to have it watched.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) state: Mutex<State>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

/// What the stream is to send, of the watch with that id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Create(i64),
    Cancel(i64),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    last_id: i64,
    /// By the id of the watch.
    pub(crate) wards: HashMap<i64, Ward>,
    /// The watches that nobody needs at present, by their ids.
    lingering: HashMap<i64, Lingering>,
    pub(crate) owners: HashMap<OwnerId, Watches>,
}

/// A key that is watched.
#[derive(Debug)]
pub(crate) struct Ward {
    owner: OwnerId,
    key: Vec<u8>,
    created: i64,
    pub(crate) role: Role,
    /// How far the cluster was at the look that this watch follows.
    seen: i64,
    /// Whether the server has set the watch up.
    stands: bool,
    /// When the key was deleted last.
    deleted: i64,
}

/// A watch of a key, without anybody who is to be told.
#[derive(Debug)]
struct Lingering {
    key: Vec<u8>,
    deleted: i64,
    since: Instant,
}

/// What the key is to whoever has it watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Own,
    Ahead { holds: bool },
}

impl Ward {
    pub(crate) fn new(owner: OwnerId, key: Vec<u8>, created: i64, role: Role, seen: i64) -> Self {
        Self { owner, key, created, role, seen, stands: false, deleted: 0 }
    }

    /// What there is to tell of the key: what was put there before us is none of ours.
    fn news(&self) -> Option<News> {
        (self.deleted > self.created).then_some(match self.role {
            Role::Own => News::Lost,
            Role::Ahead { holds: true } => News::Granted,
            Role::Ahead { holds: false } => News::Moved,
        })
    }

    pub(crate) fn is_of(&self, key: &[u8], created: i64) -> bool {
        self.key == key && self.created == created
    }
}

/// What is watched for an owner.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    pub(crate) own: Option<i64>,
    pub(crate) ahead: Option<i64>,
    pub(crate) mailbox: Mailbox,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    lost: bool,
    pub(crate) granted: bool,
    pub(crate) moved: bool,
    pub(crate) look_again: bool,
    pub(crate) arrival: Arc<Notify>,
}

impl Mailbox {
    fn put(&mut self, news: News) {
        match news {
            News::Lost => self.lost = true,
            News::Granted => self.granted = true,
            News::Moved => self.moved = true,
            News::LookAgain => self.look_again = true,
        }
        self.arrival.notify_one();
    }

    pub(crate) fn take(&mut self) -> Option<News> {
        let is_lost = std::mem::take(&mut self.lost);
        let is_granted = std::mem::take(&mut self.granted) && !is_lost;
        let is_moved = std::mem::take(&mut self.moved);
        let looks_again = std::mem::take(&mut self.look_again);
        is_lost
            .then_some(News::Lost)
            .or(is_granted.then_some(News::Granted))
            .or(is_moved.then_some(News::Moved))
            .or(looks_again.then_some(News::LookAgain))
    }
}

impl State {
    pub(crate) fn watches(&mut self, owner: OwnerId) -> &mut Watches {
        self.owners.entry(owner).or_default()
    }

    pub(crate) fn is_other(&self, id: i64, key: &[u8], created: i64) -> bool {
        self.wards.get(&id).is_none_or(|ward| !ward.is_of(key, created))
    }

    /// Takes note that the server has set the watch up after this revision, and that the key was
    /// deleted at that one.
    pub(crate) fn heard(&mut self, id: i64, begins_after: Option<i64>, deleted: Option<i64>) {
        if let Some(lingering) = self.lingering.get_mut(&id) {
            lingering.deleted = lingering.deleted.max(deleted.unwrap_or(0));
        }
        let Some(ward) = self.wards.get_mut(&id) else { return };
        let mut news = None;
        if let Some(begins_after) = begins_after {
            ward.stands = true;
            // A holder looks again at its next renewal at the latest.
            if ward.role != Role::Own && begins_after > ward.seen {
                news = Some(News::LookAgain);
            }
        }
        if let Some(deleted) = deleted {
            ward.deleted = deleted;
            news = ward.news().or(news);
        }
        let owner = ward.owner;
        if let Some(news) = news {
            self.tell(owner, news);
        }
    }

    fn tell(&mut self, owner: OwnerId, news: News) {
        if let Some(watches) = self.owners.get_mut(&owner) {
            watches.mailbox.put(news);
        }
    }
}

impl Board {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, state: &mut State, mut ward: Ward) -> i64 {
        let lingering = state.lingering.iter().find(|(_, lingering)| lingering.key == ward.key);
        if let Some(id) = lingering.map(|(&id, _)| id)
            && let Some(lingering) = state.lingering.remove(&id)
        {
            (ward.stands, ward.deleted) = (true, lingering.deleted);
            if let Some(news) = ward.news() {
                state.tell(ward.owner, news);
            }
            state.wards.insert(id, ward);
            return id;
        }
        state.last_id += 1;
        state.wards.insert(state.last_id, ward);
        self.send(Command::Create(state.last_id));
        state.last_id
    }

    pub(crate) fn forget(&self, state: &mut State, id: Option<i64>) {
        let Some(id) = id else { return };
        match state.wards.remove(&id) {
            Some(Ward { key, deleted, stands: true, .. })
                if state.lingering.len() < MOST_LINGERING =>
            {
                let lingering = Lingering { key, deleted, since: Instant::now() };
                state.lingering.insert(id, lingering);
            }
            Some(_) => self.send(Command::Cancel(id)),
            None => (),
        }
    }

    fn send(&self, command: Command) {
        // Without the task there is no news, and whoever waits polls.
        _ = self.commands.send(command);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().wards.is_empty()
    }

    /// All that is to be watched on a new stream.
    pub(crate) fn all(&self) -> VecDeque<Command> {
        self.state().wards.keys().map(|&id| Command::Create(id)).collect()
    }

    /// Takes note that the stream has ended, and all watches with it.
    pub(crate) fn fall(&self) {
        let mut state = self.state();
        state.lingering.clear();
        state.wards.values_mut().for_each(|ward| ward.stands = false);
    }

    pub(crate) fn has_lingering(&self) -> bool {
        !self.state().lingering.is_empty()
    }

    /// The watches that have lingered for long enough.
    pub(crate) fn sweep(&self) -> Vec<Command> {
        let is_over = |_: &i64, lingering: &mut Lingering| lingering.since.elapsed() >= LINGER;
        let mut state = self.state();
        state.lingering.extract_if(is_over).map(|(id, _)| Command::Cancel(id)).collect()
    }

    pub(crate) fn target(&self, id: i64) -> Option<(Vec<u8>, WatchOptions)> {
        // Whether a key was put, nobody asks.
        let options = WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut]);
        self.state().wards.get(&id).map(|ward| (ward.key.clone(), options))
    }

    pub(crate) fn deliver(&self, message: &WatchResponse) -> Result<(), Failure> {
        let id = message.watch_id();
        let mut state = self.state();
        if message.canceled() {
            state.lingering.remove(&id);
            // A watch that was refused from the start has no id.
            if message.created() && message.compact_revision() == 0 {
                return Err(Failure::WatchRefused(message.cancel_reason().into()));
            }
            // What was given up is no ward any more.
            let Some(mut ward) = state.wards.remove(&id) else { return Ok(()) };
            if message.compact_revision() == 0 {
                state.wards.insert(id, ward);
                return Err(Failure::WatchRefused(message.cancel_reason().into()));
            }
            // The watch was so far behind that what it missed is no longer there.
            let (owner, role) = (ward.owner, ward.role);
            ward.stands = false;
            let id = self.add(&mut state, ward);
            let watches = state.watches(owner);
            match role {
                Role::Own => watches.own = Some(id),
                Role::Ahead { .. } => watches.ahead = Some(id),
            }
            state.tell(owner, News::LookAgain);
            return Ok(());
        }
        let deleted = message.events().iter().filter(|it| it.event_type() == EventType::Delete);
        let deleted = deleted.filter_map(|event| Some(event.kv()?.mod_revision())).max();
        let begins_after = message.header().map_or(i64::MAX, |header| header.revision());
        state.heard(id, message.created().then_some(begins_after), deleted);
        Ok(())
    }
}
