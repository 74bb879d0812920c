use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchRequestSender, WatchResponse, WatchStream};
use lockkit_core::driver::{Backoff, OwnerId};
use tokio::select;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::error::Failure;
use crate::members::Members;
use crate::queue::{Ahead, Place};

/// How long opening the stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How long the stream is kept that nobody needs.
const IDLE: Duration = Duration::from_secs(30);
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Own,
    Ahead { holds: bool },
}

impl Ward {
    fn new(owner: OwnerId, key: Vec<u8>, created: i64, role: Role, seen: i64) -> Self {
        Self { owner, key, created, role, seen }
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

    fn add(&self, state: &mut State, ward: Ward) -> i64 {
        state.last_id += 1;
        state.wards.insert(state.last_id, ward);
        self.send(Command::Create(state.last_id));
        state.last_id
    }

    fn forget(&self, state: &mut State, id: Option<i64>) {
        if let Some(id) = id
            && state.wards.remove(&id).is_some()
        {
            self.send(Command::Cancel(id));
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

    fn target(&self, id: i64) -> Option<(Vec<u8>, WatchOptions)> {
        let options = WatchOptions::new().with_watch_id(id);
        self.state().wards.get(&id).map(|ward| (ward.key.clone(), options))
    }

    fn deliver(&self, message: &WatchResponse) -> Result<(), Failure> {
        let id = message.watch_id();
        let mut state = self.state();
        if message.canceled() {
            // What was given up is no ward any more.
            let Some(ward) = state.wards.remove(&id) else { return Ok(()) };
            if message.compact_revision() == 0 {
                state.wards.insert(id, ward);
                return Err(Failure::WatchRefused(message.cancel_reason().into()));
            }
            // The watch was so far behind that what it missed is no longer there.
            let (owner, role) = (ward.owner, ward.role);
            let id = self.add(&mut state, ward);
            let watches = state.watches(owner);
            match role {
                Role::Own => watches.own = Some(id),
                Role::Ahead { .. } => watches.ahead = Some(id),
            }
            state.tell(owner, News::LookAgain);
            return Ok(());
        }
        let Some(ward) = state.wards.get_mut(&id) else { return Ok(()) };
        let (owner, mut news) = (ward.owner, None);
        if message.created() {
            let begins_after = message.header().map_or(i64::MAX, |header| header.revision());
            // A holder looks again at its next renewal at the latest.
            if ward.role != Role::Own && begins_after > ward.seen {
                news = Some(News::LookAgain);
            }
        }
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            // What was put there before us is none of ours.
            if event.event_type() == EventType::Delete && kv.mod_revision() > ward.created {
                news = Some(match ward.role {
                    Role::Own => News::Lost,
                    Role::Ahead { holds: true } => News::Granted,
                    Role::Ahead { holds: false } => News::Moved,
                });
            }
        }
        if let Some(news) = news {
            state.tell(owner, news);
        }
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
        let Err(failure) = watch(&members, member, &board, &mut inbox).await else {
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
    let mut outbox = board.all();
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
