use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    EventType, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse, WatchStream,
};
use lockkit_core::driver::{Backoff, OwnerId};
use tokio::select;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::error::Failure;
use crate::members::Members;
use crate::queue::{Ahead, Place};

/// How long opening the stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How long the stream is kept that nobody needs.
const IDLE: Duration = Duration::from_secs(30);
/// How long a watch is kept that nobody needs.
const LINGER: Duration = Duration::from_secs(1);
/// How many of those there are at the most.
const MOST_LINGERING: usize = 64;
/// A stream that broke sooner counts as a failed attempt.
const CALM: Duration = Duration::from_secs(5);
/// How long to leave the cluster alone that lets us watch nothing.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The stream on which keys are watched, shared by all who hold or wait.
///
/// It is opened when it is needed and opened anew, on another member, when it breaks. A watch begins
/// with the moment at which the server sets it up, since one that begins earlier is served by a loop
/// that runs ten times a second; if something was written since the look that it follows, whoever
/// looked is told to look again.
///
/// Keys come again, and where a lock is contended they do so soon: a watch lingers for whoever needs
/// the next one of that key, which has no beginning then before which anything could be missed.
#[derive(Debug)]
pub(crate) struct Watch {
    board: Arc<Board>,
    supervisor: AbortOnDropHandle<()>,
}

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

impl Watch {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let board = Arc::new(Board { state: Mutex::default(), commands });
        let supervisor = tokio::spawn(supervise(members, Arc::clone(&board), inbox));
        Self { board, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Watches for `owner`, who found itself at this place behind another.
    pub(crate) fn wait(&self, owner: OwnerId, place: &Place, ahead: &Ahead) {
        let mut state = self.board.state();
        let own = state.watches(owner).own;
        let key = place.key.as_bytes();
        if own.is_none_or(|id| state.is_other(id, key, place.created)) {
            self.board.forget(&mut state, own);
            let ward = Ward::new(owner, key.into(), place.created, Role::Own, place.revision);
            let id = self.board.add(&mut state, ward);
            state.watches(owner).own = Some(id);
        }
        let before = state.watches(owner).ahead;
        match before.and_then(|id| state.wards.get_mut(&id)) {
            Some(ward) if ward.is_of(&ahead.key, ahead.created) => {
                ward.role = Role::Ahead { holds: ahead.holds };
            }
            _ => {
                self.board.forget(&mut state, before);
                // The refusal voids what was told of the one before.
                state.watches(owner).mailbox.granted = false;
                let role = Role::Ahead { holds: ahead.holds };
                let key = ahead.key.clone();
                let ward = Ward::new(owner, key, ahead.created, role, place.revision);
                let id = self.board.add(&mut state, ward);
                state.watches(owner).ahead = Some(id);
            }
        }
    }

    /// Watches for `owner`, who holds the lock by this key, unless it does already.
    pub(crate) fn hold(&self, owner: OwnerId, key: &str, created: i64) {
        let mut state = self.board.state();
        if state.watches(owner).own.is_none() {
            let ward = Ward::new(owner, key.into(), created, Role::Own, created);
            let id = self.board.add(&mut state, ward);
            state.watches(owner).own = Some(id);
        }
    }

    /// Watches the own key alone from now on: the lock is held.
    pub(crate) fn granted(&self, owner: OwnerId) {
        let mut state = self.board.state();
        let Some(watches) = state.owners.get_mut(&owner) else { return };
        watches.mailbox.granted = false;
        watches.mailbox.moved = false;
        watches.mailbox.look_again = false;
        let ahead = watches.ahead.take();
        self.board.forget(&mut state, ahead);
    }

    /// Watches no longer for `owner`.
    pub(crate) fn leave(&self, owner: OwnerId) {
        let mut state = self.board.state();
        if let Some(watches) = state.owners.remove(&owner) {
            self.board.forget(&mut state, watches.own);
            self.board.forget(&mut state, watches.ahead);
        }
    }

    /// The next news for `owner`; none ever if nothing is watched for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news are taken only when they are returned.
    pub(crate) async fn changed(&self, owner: OwnerId) -> News {
        loop {
            let arrival = match self.board.state().owners.entry(owner) {
                Entry::Vacant(_) => None,
                Entry::Occupied(mut watches) => match watches.get_mut().mailbox.take() {
                    Some(news) => return news,
                    None => Some(Arc::clone(&watches.get().mailbox.arrival)),
                },
            };
            match arrival {
                Some(arrival) => arrival.notified().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Ends the stream.
    pub(crate) fn close(&self) {
        self.supervisor.abort();
    }
}

#[derive(Debug)]
struct Board {
    state: Mutex<State>,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Create(i64),
    Cancel(i64),
}

#[derive(Debug, Default)]
struct State {
    last_id: i64,
    /// By the id of the watch.
    wards: HashMap<i64, Ward>,
    /// The watches that nobody needs at present, by their ids.
    lingering: HashMap<i64, Lingering>,
    owners: HashMap<OwnerId, Watches>,
}

/// A key that is watched.
#[derive(Debug)]
struct Ward {
    owner: OwnerId,
    key: Vec<u8>,
    created: i64,
    role: Role,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Own,
    Ahead { holds: bool },
}

impl Ward {
    fn new(owner: OwnerId, key: Vec<u8>, created: i64, role: Role, seen: i64) -> Self {
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

    fn is_of(&self, key: &[u8], created: i64) -> bool {
        self.key == key && self.created == created
    }
}

/// What is watched for an owner.
#[derive(Debug, Default)]
struct Watches {
    own: Option<i64>,
    ahead: Option<i64>,
    mailbox: Mailbox,
}

#[derive(Debug, Default)]
struct Mailbox {
    lost: bool,
    granted: bool,
    moved: bool,
    look_again: bool,
    arrival: Arc<Notify>,
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

    fn take(&mut self) -> Option<News> {
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
    fn watches(&mut self, owner: OwnerId) -> &mut Watches {
        self.owners.entry(owner).or_default()
    }

    fn is_other(&self, id: i64, key: &[u8], created: i64) -> bool {
        self.wards.get(&id).is_none_or(|ward| !ward.is_of(key, created))
    }

    /// Takes note that the server has set the watch up after this revision, and that the key was
    /// deleted at that one.
    fn heard(&mut self, id: i64, begins_after: Option<i64>, deleted: Option<i64>) {
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
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, state: &mut State, mut ward: Ward) -> i64 {
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

    fn forget(&self, state: &mut State, id: Option<i64>) {
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

    fn is_empty(&self) -> bool {
        self.state().wards.is_empty()
    }

    /// All that is to be watched on a new stream.
    fn all(&self) -> VecDeque<Command> {
        self.state().wards.keys().map(|&id| Command::Create(id)).collect()
    }

    /// Takes note that the stream has ended, and all watches with it.
    fn fall(&self) {
        let mut state = self.state();
        state.lingering.clear();
        state.wards.values_mut().for_each(|ward| ward.stands = false);
    }

    fn has_lingering(&self) -> bool {
        !self.state().lingering.is_empty()
    }

    /// The watches that have lingered for long enough.
    fn sweep(&self) -> Vec<Command> {
        let is_over = |_: &i64, lingering: &mut Lingering| lingering.since.elapsed() >= LINGER;
        let mut state = self.state();
        state.lingering.extract_if(is_over).map(|(id, _)| Command::Cancel(id)).collect()
    }

    fn target(&self, id: i64) -> Option<(Vec<u8>, WatchOptions)> {
        // Whether a key was put, nobody asks.
        let options = WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut]);
        self.state().wards.get(&id).map(|ward| (ward.key.clone(), options))
    }

    fn deliver(&self, message: &WatchResponse) -> Result<(), Failure> {
        let id = message.watch_id();
        let mut state = self.state();
        if message.canceled() {
            state.lingering.remove(&id);
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

/// Keeps a stream while something is watched.
async fn supervise(
    members: Arc<Members>,
    board: Arc<Board>,
    mut inbox: mpsc::UnboundedReceiver<Command>,
) {
    let mut backoff = Backoff::default();
    let mut refused = false;
    loop {
        while board.is_empty() {
            if inbox.recv().await.is_none() {
                return;
            }
        }
        sleep(backoff.pause()).await;
        // All of it is on the board.
        while inbox.try_recv().is_ok() {}
        let (member, began) = (members.current(), Instant::now());
        let outcome = watch(&members, member, &board, &mut inbox).await;
        board.fall();
        let Err(failure) = outcome else {
            backoff.succeeded();
            continue;
        };
        match began.elapsed() < CALM {
            true => backoff.failed(),
            false => backoff.succeeded(),
        }
        let member_name = members.name(member);
        if let Failure::WatchRefused(_) = failure {
            // The token may have run out, which a stream does not say otherwise.
            let renewed =
                members.ask(member, OPEN_LIMIT, async |client| client.refresh_token().await);
            let renewed = renewed.await;
            if renewed.is_err() || std::mem::replace(&mut refused, began.elapsed() < CALM) {
                tracing::warn!(member = member_name, %failure, "etcd tells no news; waiters poll");
                sleep(REFUSED_PAUSE).await;
            }
        } else {
            tracing::debug!(member = member_name, %failure, "no news from etcd for now");
            members.leave(member);
        }
    }
}

/// Watches until the stream breaks, nobody needs it, or another member is in use.
async fn watch(
    members: &Members,
    member: usize,
    board: &Board,
    inbox: &mut mpsc::UnboundedReceiver<Command>,
) -> Result<(), Failure> {
    let mut changes = members.changes();
    let (mut outbox, mut sweep) = (board.all(), Instant::now());
    let Some((mut sender, mut stream)) = open(members, member, board, &mut outbox).await? else {
        return Ok(());
    };
    loop {
        if *changes.borrow_and_update() != member {
            return Ok(());
        }
        let next = outbox.front().copied();
        select! {
            message = stream.message() => match message? {
                Some(message) => board.deliver(&message)?,
                None => return Err(Failure::Ended),
            },
            sent = send(&mut sender, board, next), if next.is_some() => {
                sent?;
                outbox.pop_front();
            }
            command = inbox.recv() => match command {
                Some(command) => outbox.push_back(command),
                None => return Ok(()),
            },
            () = sleep_until(sweep), if board.has_lingering() => {
                outbox.extend(board.sweep());
                sweep = Instant::now() + LINGER;
            }
            _ = changes.changed() => (),
            () = sleep(IDLE), if board.is_empty() => return Ok(()),
        }
    }
}

type Opened = (WatchRequestSender, etcd_client::WatchResponseStream);

/// Opens a stream, which takes a key to begin with; `None` if there is none.
async fn open(
    members: &Members,
    member: usize,
    board: &Board,
    outbox: &mut VecDeque<Command>,
) -> Result<Option<Opened>, Failure> {
    while let Some(command) = outbox.pop_front() {
        let Command::Create(id) = command else { continue };
        let Some((key, options)) = board.target(id) else { continue };
        let opening = async {
            let client = members.client(member).await?;
            Ok(client.watch_client().watch(key, Some(options)).await?)
        };
        let opened = timeout(OPEN_LIMIT, opening).await;
        let opened: WatchStream = opened.unwrap_or(Err(Failure::NoAnswer(OPEN_LIMIT)))?;
        return Ok(Some(opened.split()));
    }
    Ok(None)
}

/// Sends a command, unless it has become needless.
///
/// # Cancel safety
///
/// Cancel-safe: what is dropped was not sent.
async fn send(
    sender: &mut WatchRequestSender,
    board: &Board,
    command: Option<Command>,
) -> Result<(), Failure> {
    match command {
        Some(Command::Create(id)) => {
            if let Some((key, options)) = board.target(id) {
                sender.watch(key, Some(options)).await?;
            }
        }
        Some(Command::Cancel(id)) => sender.cancel(id).await?,
        None => (),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use lockkit_core::driver::OwnerId;
    use tokio::sync::mpsc;

    use super::{Ahead, Board, Command, News, Watch};
    use crate::queue::Place;

    /// A watch without a stream, and what it would send.
    fn watch() -> (Watch, mpsc::UnboundedReceiver<Command>) {
        let (commands, sent) = mpsc::unbounded_channel();
        let board = Arc::new(Board { state: Mutex::default(), commands });
        let supervisor = tokio::spawn(std::future::pending());
        (Watch { board, supervisor: super::AbortOnDropHandle::new(supervisor) }, sent)
    }

    /// Waits behind the first of the queue, `a`, which was created at `created`.
    fn wait(watch: &Watch, created: i64) -> OwnerId {
        let (owner, ahead) = (OwnerId::random(), Ahead { key: b"a".into(), created, holds: true });
        let (created, revision) = (created + 1, created + 1);
        watch.wait(owner, &Place { key: "b".into(), created, ahead: None, revision }, &ahead);
        owner
    }

    fn created(sent: &mut mpsc::UnboundedReceiver<Command>) -> Vec<i64> {
        let mut ids = Vec::new();
        while let Ok(command) = sent.try_recv() {
            if let Command::Create(id) = command {
                ids.push(id);
            }
        }
        ids
    }

    fn news(watch: &Watch, owner: OwnerId) -> Option<News> {
        watch.board.state().watches(owner).mailbox.take()
    }

    #[tokio::test]
    async fn what_comes_before_it_is_watched_for_again_is_told() {
        let (watch, mut sent) = watch();
        let first = wait(&watch, 10);
        let ids = created(&mut sent);
        let [own, ahead] = ids[..] else { panic!("{ids:?}") };
        let heard = |id, begins_after, deleted| {
            watch.board.state().heard(id, begins_after, deleted);
        };
        heard(own, Some(11), None);
        heard(ahead, Some(11), None);
        assert_eq!(news(&watch, first), None);
        heard(ahead, None, Some(12));
        assert_eq!(news(&watch, first), Some(News::Granted));
        watch.leave(first);

        // The keys come again. Of the key ahead it is heard first that it has gone.
        heard(ahead, None, Some(22));
        let second = wait(&watch, 20);
        assert_eq!(news(&watch, second), Some(News::Granted));
        watch.leave(second);
        // What was heard of the keys before is none of ours.
        let third = wait(&watch, 30);
        assert_eq!(news(&watch, third), None);
        heard(own, None, Some(32));
        assert_eq!(news(&watch, third), Some(News::Lost));
        assert!(created(&mut sent).is_empty(), "a watch that lingers is used again");
    }

    #[tokio::test]
    async fn nothing_lingers_over_the_end_of_a_stream() {
        let (watch, mut sent) = watch();
        let first = wait(&watch, 10);
        for id in created(&mut sent) {
            watch.board.state().heard(id, Some(11), None);
        }
        watch.leave(first);
        watch.board.fall();
        wait(&watch, 20);
        assert_eq!(created(&mut sent).len(), 2);
    }

    #[tokio::test]
    async fn a_watch_that_was_never_set_up_does_not_linger() {
        let (watch, mut sent) = watch();
        let first = wait(&watch, 10);
        assert_eq!(created(&mut sent).len(), 2);
        watch.leave(first);
        wait(&watch, 20);
        assert_eq!(created(&mut sent).len(), 2);
    }
}
