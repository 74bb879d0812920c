//! News by inotify(7): the file of each lock that is waited for is watched.
//!
//! Whoever holds a lock has its file open for writing, and whoever asks for one that is taken never
//! has. So when a file that was open for writing is closed, its lock was let go: by a release, by
//! the death of the holder, or by the end of the last program that had inherited it.
//!
//! A watch is for one event, so that a crowd is not woken again while it leaves others the first
//! try. Each ask that is refused makes another watch.
//!
//! Two things go unheard: a release while a process that was forked has a copy of the descriptor,
//! and a death that is told of so early that the lock is not free yet when it is asked for. That is
//! why there is a [`PATIENCE`](super::PATIENCE).

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkit_core::driver::{Change, OwnerId};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::select;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::Listening;
use crate::claims::start_blocking;

/// A close after writing is the end of a hold; the other events tell that the path may lead to
/// another file. None of them comes from asking for a lock that is taken, or from looking at one.
const EVENTS: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::ONESHOT);

/// How often to remove the watches that have not been used since the last sweep.
const SWEEP: Duration = Duration::from_secs(1);
/// How long to leave inotify alone after the news could not be read.
const REST: Duration = Duration::from_secs(30);

/// The news of a driver, shared by all waiters: one inotify instance, and a watch for each file.
///
/// The instance is made when the first waiter needs it, and given up some time after the last has
/// gone. Where none is to be had, waiters poll.
#[derive(Debug)]
pub(crate) struct News {
    board: Arc<Board>,
}

impl News {
    pub(crate) fn new() -> Self {
        Self { board: Arc::default() }
    }

    /// Listens for `owner`, whose ask for the lock at `path` was refused. The owner has missed
    /// nothing if it has been listening [since before](Listening::Still) that ask; otherwise it has
    /// to ask again.
    ///
    /// Blocks as the disk does, and is called where there is a runtime.
    pub(crate) fn listen(&self, owner: OwnerId, path: &Path) -> Listening {
        match self.watch(owner, path) {
            Ok(listening) => listening,
            Err(error) => {
                let mut waiters = self.board.waiters();
                if !std::mem::replace(&mut waiters.are_deaf, true) {
                    tracing::debug!(path = %path.display(), %error, "no news of a lock; waiters poll");
                }
                waiters.deafen(owner);
                Listening::Deaf
            }
        }
    }

    fn watch(&self, owner: OwnerId, path: &Path) -> io::Result<Listening> {
        let inotify = self.instance()?;
        // Not while the waiters are locked, since the disk may hang. What is told of a new watch
        // before it is noted came before the ask that is to follow.
        let watch = inotify::add_watch(&*inotify, path, EVENTS)?;
        Ok(self.board.waiters().settle(owner, &inotify, watch))
    }

    /// Whether `owner` was refused over and over, so that it had better listen before it asks.
    pub(crate) fn are_in_vain(&self, owner: OwnerId) -> bool {
        self.board.waiters().mailboxes.get(&owner).is_some_and(|mailbox| mailbox.refusals > 1)
    }

    /// Stops listening for `owner`.
    pub(crate) fn leave(&self, owner: OwnerId) {
        self.board.waiters().remove(owner);
    }

    /// The next news for `owner`; never any if it does not listen.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when it is returned.
    pub(crate) async fn changed(&self, owner: OwnerId) -> Change {
        loop {
            let arrival = {
                let mut waiters = self.board.waiters();
                let mailbox = waiters.mailboxes.get_mut(&owner);
                mailbox.map(|mailbox| mailbox.told.take().ok_or_else(|| mailbox.arrival.clone()))
            };
            match arrival {
                Some(Ok(Told::Freed)) => return Change::Freed,
                Some(Ok(Told::AskAgain)) => return Change::AskAgain,
                Some(Err(arrival)) => arrival.notified().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Gives up the instance.
    pub(crate) fn close(&self) {
        let reading = {
            let mut waiters = self.board.waiters();
            waiters.fall();
            waiters.reading.take()
        };
        if let Some(reading) = reading {
            reading.abort();
        }
    }

    fn instance(&self) -> io::Result<Arc<OwnedFd>> {
        let runtime = Handle::current().id();
        let inotify = {
            let mut waiters = self.board.waiters();
            if let Some(inotify) = &waiters.inotify {
                return Ok(Arc::clone(inotify));
            }
            if waiters.rests_until.is_some_and(|until| Instant::now() < until) {
                return Err(io::Error::other("they could not be read a while ago"));
            }
            if waiters.without_io.contains(&runtime) {
                return Err(io::Error::other("they cannot be read on a runtime without I/O"));
            }
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            Arc::clone(waiters.inotify.insert(Arc::new(inotify)))
        };
        let standing = Standing {
            board: Arc::clone(&self.board),
            inotify: Some(inotify.clone()),
            runtime,
            has_failed: false,
        };
        let reading = tokio::spawn(read_all(Arc::clone(&inotify), standing));
        self.board.waiters().reading = Some(reading.abort_handle());
        Ok(inotify)
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug, Default)]
struct Board(Mutex<Waiters>);

impl Board {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who listens, and to what.
#[derive(Debug, Default)]
struct Waiters {
    mailboxes: HashMap<OwnerId, Mailbox>,
    watches: HashMap<i32, Watch>,
    inotify: Option<Arc<OwnedFd>>,
    reading: Option<AbortHandle>,
    /// When to try again to read news.
    rests_until: Option<Instant>,
    /// The runtimes on which there is no use in trying.
    without_io: HashSet<Id>,
    /// Whether the last attempt to listen failed.
    are_deaf: bool,
}

/// A file that is watched.
#[derive(Debug, Default)]
struct Watch {
    owners: HashSet<OwnerId>,
    /// Whether a sweep has found that nobody needed it.
    is_idle: bool,
}

/// The news of one waiter.
#[derive(Debug, Default)]
struct Mailbox {
    watch: Option<i32>,
    told: Option<Told>,
    arrival: Arc<Notify>,
    refusals: u32,
}

/// The greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Freed,
    AskAgain,
}

impl Mailbox {
    fn tell(&mut self, told: Told) {
        self.told = self.told.max(Some(told));
        self.arrival.notify_one();
    }
}

impl Waiters {
    /// Notes that `owner` listens to this watch.
    fn settle(&mut self, owner: OwnerId, inotify: &Arc<OwnedFd>, watch: i32) -> Listening {
        let mailbox = self.mailboxes.entry(owner).or_default();
        if !self.inotify.as_ref().is_some_and(|standing| Arc::ptr_eq(standing, inotify)) {
            // The instance fell meanwhile.
            return Listening::FromNow;
        }
        self.are_deaf = false;
        // The number of a watch is not used again.
        let before = mailbox.watch.replace(watch);
        if before == Some(watch) {
            mailbox.refusals = mailbox.refusals.saturating_add(1);
            return Listening::Still;
        }
        self.forget(owner, before);
        let watch = self.watches.entry(watch).or_default();
        watch.is_idle = false;
        watch.owners.insert(owner);
        Listening::FromNow
    }

    /// Notes that `owner` hears nothing of a file.
    fn deafen(&mut self, owner: OwnerId) {
        let before = self.mailboxes.get_mut(&owner).and_then(|mailbox| mailbox.watch.take());
        self.forget(owner, before);
    }

    fn remove(&mut self, owner: OwnerId) {
        if let Some(mailbox) = self.mailboxes.remove(&owner) {
            self.forget(owner, mailbox.watch);
        }
    }

    fn forget(&mut self, owner: OwnerId, watch: Option<i32>) {
        if let Some(watch) = watch.and_then(|watch| self.watches.get_mut(&watch)) {
            watch.owners.remove(&owner);
        }
    }

    fn deliver(&mut self, watch: i32, events: ReadFlags) {
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.tell_all();
            return;
        }
        let told = match events.contains(ReadFlags::CLOSE_WRITE) {
            true => Told::Freed,
            false => Told::AskAgain,
        };
        // After the one event comes another, which says that the watch is over.
        let Some(over) = self.watches.remove(&watch) else { return };
        for owner in &over.owners {
            if let Some(mailbox) = self.mailboxes.get_mut(owner) {
                mailbox.watch = None;
                mailbox.tell(told);
            }
        }
    }

    fn tell_all(&mut self) {
        self.mailboxes.values_mut().for_each(|mailbox| mailbox.tell(Told::AskAgain));
    }

    /// Removes the watches that nobody needs any more. Returns whether the instance went with them.
    fn sweep(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return true };
        self.watches.retain(|number, watch| {
            let stays = !watch.owners.is_empty() || !std::mem::replace(&mut watch.is_idle, true);
            if !stays && let Err(error) = inotify::remove_watch(&**inotify, *number) {
                // The watch went with its file.
                tracing::trace!(%error, "a watch was not there any more");
            }
            stays
        });
        let is_empty = self.watches.is_empty() && self.mailboxes.is_empty();
        if is_empty {
            self.inotify = None;
        }
        is_empty
    }

    /// Notes that the instance no longer stands.
    fn fall(&mut self) {
        self.inotify = None;
        self.watches.clear();
        self.mailboxes.values_mut().for_each(|mailbox| mailbox.watch = None);
        self.tell_all();
    }
}

/// Delivers news until nobody needs it any more.
async fn read_all(inotify: Arc<OwnedFd>, mut standing: Standing) {
    if let Err(error) = read_on(inotify, &standing.board).await {
        standing.has_failed = true;
        tracing::debug!(%error, "news of locks cannot be read; waiters poll");
    }
}

async fn read_on(inotify: Arc<OwnedFd>, board: &Board) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "what replaces it asks for unsafe code, with a promise that an \
                                   `Arc<OwnedFd>` keeps anyway: it stays open, and the same"
    )]
    let inotify = AsyncFd::new(inotify)?;
    let mut sweeps = tokio::time::interval(SWEEP);
    loop {
        select! {
            ready = inotify.readable() => {
                let mut ready = ready?;
                deliver(inotify.get_ref(), board)?;
                ready.clear_ready();
            }
            _ = sweeps.tick() => {
                if board.waiters().sweep() {
                    return Ok(());
                }
            }
        }
    }
}

/// Reads until there is nothing more.
fn deliver(inotify: &OwnedFd, board: &Board) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            Ok(event) => board.waiters().deliver(event.wd(), event.events()),
            Err(Errno::INTR) => (),
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Stands for an instance that is being read. Once it is not any more, whoever listens is told so.
#[derive(Debug)]
struct Standing {
    board: Arc<Board>,
    inotify: Option<Arc<OwnedFd>>,
    runtime: Id,
    has_failed: bool,
}

impl Drop for Standing {
    fn drop(&mut self) {
        let Some(inotify) = self.inotify.take() else { return };
        let mut waiters = self.board.waiters();
        if waiters.inotify.as_ref().is_some_and(|standing| Arc::ptr_eq(standing, &inotify)) {
            // Otherwise the runtime has ended, and another is as good.
            if self.has_failed {
                waiters.rests_until = Some(Instant::now() + REST);
            }
            // There is no other way to learn that a runtime has no I/O.
            if std::thread::panicking() {
                waiters.without_io.insert(self.runtime);
            }
            waiters.fall();
        }
        drop(waiters);
        // Closing it takes the kernel ten milliseconds.
        if Handle::try_current().is_ok() {
            drop(start_blocking(move || {
                drop(inotify);
                Ok(())
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lockkit_core::driver::{Change, OwnerId};
    use rustix::fs::inotify::{CreateFlags, ReadFlags, init};
    use tokio::runtime::Builder;
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::{Listening, News};

    fn owner(number: u8) -> OwnerId {
        format!("{number:032x}").parse().unwrap()
    }

    /// With this many waiters, each of which listens to a file of its own.
    fn news(waiters: u8) -> News {
        let news = News::new();
        let inotify = Arc::new(init(CreateFlags::CLOEXEC).unwrap());
        let mut state = news.board.waiters();
        state.inotify = Some(Arc::clone(&inotify));
        for number in 0..waiters {
            let mut settle = || state.settle(owner(number), &inotify, number.into());
            assert_eq!((settle(), settle()), (Listening::FromNow, Listening::Still));
        }
        drop(state);
        news
    }

    /// What there is to hear, which is ready at once.
    async fn heard(news: &News, owner: OwnerId) -> Option<Change> {
        timeout(Duration::ZERO, news.changed(owner)).await.ok()
    }

    /// Each time would be a panic, which the program's hook is told of.
    #[test]
    fn a_runtime_without_io_is_tried_once_and_another_is_as_good() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (news, path) = (News::new(), file.path());
        Builder::new_current_thread().build().unwrap().block_on(async {
            assert_eq!(news.listen(owner(0), path), Listening::FromNow);
            while news.board.waiters().inotify.is_some() {
                yield_now().await;
            }
            // As after some time.
            news.board.waiters().rests_until = None;
            assert_eq!(news.listen(owner(0), path), Listening::Deaf);
        });
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            assert_eq!(news.listen(owner(0), path), Listening::FromNow);
            yield_now().await;
            assert_eq!(news.listen(owner(0), path), Listening::Still);
        });
    }

    #[tokio::test]
    async fn where_news_are_lost_everybody_asks() {
        let news = news(3);
        news.board.waiters().deliver(-1, ReadFlags::QUEUE_OVERFLOW);
        for number in 0..3 {
            assert_eq!(heard(&news, owner(number)).await, Some(Change::AskAgain));
            assert_eq!(heard(&news, owner(number)).await, None);
        }
    }

    #[tokio::test]
    async fn news_of_a_file_are_for_who_waits_for_it_and_come_once() {
        let news = news(2);
        for events in [ReadFlags::CLOSE_WRITE, ReadFlags::IGNORED, ReadFlags::CLOSE_WRITE] {
            news.board.waiters().deliver(1, events);
        }
        assert_eq!(heard(&news, owner(0)).await, None);
        assert_eq!(heard(&news, owner(1)).await, Some(Change::Freed));
        assert_eq!(heard(&news, owner(1)).await, None);
    }
}
