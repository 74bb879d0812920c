mod stream;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::driver::{Backoff, OwnerId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::stream::watch;
use crate::board::{Board, Command, NOT_YET, News};
use crate::error::Failure;
use crate::members::Members;
use crate::queue::{Ahead, Place};

/// How long opening the stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How long to leave a cluster alone that lets us watch nothing, or not a key.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The stream on which keys are watched, shared by all who hold or wait.
///
/// It is opened when it is needed, and opened anew, on another member, when it breaks. A watch
/// begins at the moment at which the server sets it up, since one that begins earlier is served by
/// a loop that runs ten times a second. If something was written since the look that the watch
/// follows, whoever looked is told to look again.
///
/// A key is watched once, for whoever has it and for whoever is behind it. Keys come again, and
/// soon where a lock is contended: a watch lingers for whoever needs the next one of that key.
#[derive(Debug)]
pub(crate) struct Watch {
    board: Arc<Board>,
    supervisor: AbortOnDropHandle<()>,
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
        self.board.watch_own(owner, Arc::clone(&place.key), place.created, place.revision);
        self.board.watch_ahead(owner, ahead, place.revision);
    }

    /// Watches a key that `owner` is about to put.
    pub(crate) fn expect(&self, owner: OwnerId, key: &Arc<str>) {
        self.board.watch_own(owner, Arc::clone(key), NOT_YET, NOT_YET);
    }

    /// The key before the one of `owner`, if it is watched for it and is the one that was created
    /// then.
    pub(crate) fn ahead(&self, owner: OwnerId, created: i64) -> Option<Ahead> {
        self.board.ahead(owner, created)
    }

    /// Watches for `owner`, who holds the lock with this key, unless it does already.
    pub(crate) fn hold(&self, owner: OwnerId, key: Arc<str>, created: i64) {
        self.board.watch_own(owner, key, created, created);
    }

    /// Watches only the owner's key from now on: the lock is held.
    pub(crate) fn granted(&self, owner: OwnerId) {
        self.board.granted(owner);
    }

    /// Stops watching for `owner`.
    pub(crate) fn leave(&self, owner: OwnerId) {
        self.board.forget(owner);
    }

    /// The next news for `owner`; never returns if nothing is watched for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: news is taken only when it is returned.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, as captured and as moved"
    )]
    pub(crate) fn changed(&self, owner: OwnerId) -> impl Future<Output = News> + Send {
        async move {
            loop {
                let arrival = match self.board.state().mailbox(owner) {
                    // Nobody ever notifies this one.
                    None => Arc::default(),
                    Some(mailbox) => match mailbox.take() {
                        Some(news) => return news,
                        None => Arc::clone(&mailbox.arrival),
                    },
                };
                arrival.notified().await;
            }
        }
    }

    /// Ends the stream.
    pub(crate) fn close(&self) {
        self.supervisor.abort();
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
        let (current, began) = (members.current(), Instant::now());
        let (member, was_refused) = (current.member, std::mem::take(&mut refused));
        let connecting = timeout(OPEN_LIMIT, members.client(member)).await;
        let client = connecting.unwrap_or(Err(Failure::NoAnswer(OPEN_LIMIT)));
        let outcome = match &client {
            Ok(client) => watch(&members, current, client, was_refused, &board, &mut inbox).await,
            Err(failure) => Err(failure.clone()),
        };
        board.fall();
        let Err(failure) = outcome else {
            backoff.succeeded();
            continue;
        };
        let stood = began.elapsed();
        backoff.broke_after(stood);
        let member_name = members.name(member);
        if matches!(failure, Failure::WatchRefused(_)) || failure.needs_another_login() {
            // The token may have run out, which a stream does not say in any other way.
            let may_log_in = stood >= Backoff::CALM || !was_refused;
            refused = may_log_in && client.is_ok_and(|client| members.log_out(member, &client));
            if !refused {
                tracing::warn!(member = member_name, %failure, "etcd tells no news; waiters poll");
                sleep(REFUSED_PAUSE).await;
            }
        } else {
            tracing::debug!(member = member_name, %failure, "no news from etcd for now");
            match (&failure, &client) {
                (Failure::NoAnswer(_), Ok(client)) => members.unheard(member, client, began),
                (failure, Ok(client)) => members.failed(member, client, began, failure),
                (_, Err(_)) => (),
            }
            members.leave(member);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use lockkit_core::driver::OwnerId;
    use tokio::sync::mpsc;

    use super::Watch;
    use crate::board::{Board, Command, News};
    use crate::queue::{Ahead, Place};

    /// A watch without a stream, and what it would send.
    fn watch() -> (Watch, mpsc::UnboundedReceiver<Command>) {
        let (commands, sent) = mpsc::unbounded_channel();
        let board = Arc::new(Board { state: Mutex::default(), commands });
        let supervisor = tokio::spawn(std::future::pending());
        (Watch { board, supervisor: super::AbortOnDropHandle::new(supervisor) }, sent)
    }

    #[tokio::test]
    async fn a_new_stream_is_told_of_each_watch_once() {
        let (watch, mut sent) = watch();
        wait(&watch, 1);
        assert_eq!(watch.board.all(&mut sent).len(), 2);
        assert!(sent.try_recv().is_err());
    }

    /// Waits behind the first of the queue, `a`, which was created at `created`.
    fn wait(watch: &Watch, created: i64) -> OwnerId {
        let owner = OwnerId::random();
        let ahead = Ahead { key: (*b"a").into(), created, holds: true };
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

    /// What the server tells of a watch: see [`State::heard`](crate::board::State::heard).
    fn heard(watch: &Watch, id: i64, begins_after: Option<i64>, deleted: Option<i64>) {
        watch.board.state().heard(id, begins_after, deleted);
    }

    fn news(watch: &Watch, owner: OwnerId) -> Option<News> {
        watch.board.state().mailbox(owner).unwrap().take()
    }

    #[tokio::test]
    async fn what_comes_before_it_is_watched_for_again_is_told() {
        let (watch, mut sent) = watch();
        let first = wait(&watch, 10);
        let ids = created(&mut sent);
        let [own, ahead] = ids[..] else { panic!("{ids:?}") };
        heard(&watch, own, Some(11), None);
        heard(&watch, ahead, Some(11), None);
        assert_eq!(news(&watch, first), None);
        heard(&watch, ahead, None, Some(12));
        assert_eq!(news(&watch, first), Some(News::Granted));
        watch.leave(first);

        // The keys come again. This time, the first thing heard of the key ahead is that it has
        // gone.
        heard(&watch, ahead, None, Some(22));
        let second = wait(&watch, 20);
        assert_eq!(news(&watch, second), Some(News::Granted));
        watch.leave(second);
        // What was heard of the earlier keys is not about ours.
        let third = wait(&watch, 30);
        assert_eq!(news(&watch, third), None);
        heard(&watch, own, None, Some(32));
        assert_eq!(news(&watch, third), Some(News::Lost));
        assert!(created(&mut sent).is_empty(), "a watch that lingers is used again");
    }

    #[tokio::test]
    async fn one_watch_serves_whoever_has_a_key_and_whoever_is_behind() {
        for is_granted in [true, false] {
            let (watch, mut sent) = watch();
            let first = wait(&watch, 10);
            let [b, a] = created(&mut sent)[..] else { panic!() };
            let (second, key) = (OwnerId::random(), (*b"b").into());
            let behind = Place { key: "c".into(), created: 12, ahead: None, revision: 12 };
            watch.wait(second, &behind, &Ahead { key, created: 11, holds: false });
            let [c] = created(&mut sent)[..] else { panic!() };
            heard(&watch, b, Some(11), None);
            heard(&watch, a, Some(11), None);
            heard(&watch, c, Some(12), None);
            if is_granted {
                heard(&watch, a, None, Some(13));
                assert_eq!(news(&watch, first), Some(News::Granted));
                watch.granted(first);
            }
            watch.leave(first);
            assert_eq!(news(&watch, second), None);
            heard(&watch, b, None, Some(14));
            // Whoever was just before it is the first only if it was granted the lock.
            let expected = if is_granted { News::Granted } else { News::Moved };
            assert_eq!(news(&watch, second), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_grant_is_no_news_of_what_was_missed() {
        for is_pushed in [true, false] {
            let (watch, mut sent) = watch();
            let owner = wait(&watch, 10);
            let [own, ahead] = created(&mut sent)[..] else { panic!() };
            heard(&watch, own, Some(11), None);
            heard(&watch, ahead, Some(11), None);
            if is_pushed {
                heard(&watch, ahead, None, Some(12));
            }
            watch.board.fall();
            // The key may have been deleted since, by whoever breaks the hold.
            heard(&watch, own, Some(20), None);
            if is_pushed {
                assert_eq!(news(&watch, owner), Some(News::Granted));
            }
            watch.granted(owner);
            assert_eq!(news(&watch, owner), Some(News::LookAgain));
        }
    }

    #[tokio::test]
    async fn whoever_looked_before_a_watch_of_others_began_looks_again() {
        let (watch, mut sent) = watch();
        wait(&watch, 10);
        for id in created(&mut sent) {
            heard(&watch, id, Some(20), None);
        }
        let second = wait(&watch, 10);
        assert_eq!(news(&watch, second), Some(News::LookAgain));
    }

    #[tokio::test]
    async fn nobody_is_granted_a_lock_who_may_have_lost_its_place() {
        let (watch, mut sent) = watch();
        let owner = wait(&watch, 10);
        let [own, ahead] = created(&mut sent)[..] else { panic!() };
        heard(&watch, ahead, Some(11), None);
        // The owner's key may go before it is watched.
        heard(&watch, ahead, None, Some(15));
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        heard(&watch, own, Some(13), None);
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        heard(&watch, ahead, None, Some(15));
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        // It goes, and what comes back is another one.
        watch.expect(owner, &"b".into());
        heard(&watch, ahead, None, Some(15));
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        // It was there later on.
        let place = Place { key: "b".into(), created: 11, ahead: None, revision: 14 };
        watch.wait(owner, &place, &Ahead { key: (*b"a").into(), created: 10, holds: true });
        assert_eq!(news(&watch, owner), Some(News::Granted));
    }

    #[tokio::test]
    async fn whoever_is_seen_before_its_own_watch_has_begun_looks_again_once() {
        let (watch, mut sent) = watch();
        let owner = OwnerId::random();
        watch.expect(owner, &"b".into());
        let [own] = created(&mut sent)[..] else { panic!() };
        heard(&watch, own, Some(13), None);
        let place = |revision| Place { key: "b".into(), created: 11, ahead: None, revision };
        let ahead = Ahead { key: (*b"a").into(), created: 10, holds: true };
        watch.wait(owner, &place(12), &ahead);
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        let [behind_whom] = created(&mut sent)[..] else { panic!() };
        // What is heard while it looks is answered by that look, too.
        heard(&watch, behind_whom, Some(14), None);
        watch.wait(owner, &place(15), &ahead);
        assert_eq!(news(&watch, owner), None);
    }

    #[tokio::test]
    async fn a_watch_that_is_set_up_before_its_key_is_put_misses_nothing() {
        let (watch, mut sent) = watch();
        let [first, second] = [(); 2].map(|()| OwnerId::random());
        for (owner, key) in [(first, "a"), (second, "b")] {
            watch.expect(owner, &key.into());
        }
        let [a, b] = created(&mut sent)[..] else { panic!() };
        // Keys of these names were there before.
        heard(&watch, a, Some(10), Some(10));
        heard(&watch, b, Some(10), Some(10));
        watch.hold(first, "a".into(), 11);
        let ahead = Ahead { key: (*b"a").into(), created: 11, holds: true };
        let place = Place { key: "b".into(), created: 12, ahead: None, revision: 14 };
        watch.wait(second, &place, &ahead);
        assert!(created(&mut sent).is_empty(), "watched again");
        assert_eq!([first, second].map(|owner| news(&watch, owner)), [None, None]);
        heard(&watch, a, None, Some(15));
        heard(&watch, b, None, Some(16));
        assert_eq!([first, second].map(|owner| news(&watch, owner)), [Some(News::Lost); 2]);
    }

    #[tokio::test]
    async fn a_watch_that_the_server_has_ended_is_set_up_anew() {
        let (watch, mut sent) = watch();
        let owner = wait(&watch, 10);
        let [own, ahead] = created(&mut sent)[..] else { panic!() };
        heard(&watch, own, Some(11), None);
        heard(&watch, ahead, Some(11), None);
        watch.board.renew(&mut watch.board.state(), ahead);
        assert_eq!(news(&watch, owner), Some(News::LookAgain));
        let [anew] = created(&mut sent)[..] else { panic!() };
        heard(&watch, anew, Some(11), None);
        assert_eq!(news(&watch, owner), None);
        heard(&watch, anew, None, Some(12));
        assert_eq!(news(&watch, owner), Some(News::Granted));
    }

    #[tokio::test]
    async fn nothing_lingers_over_the_end_of_a_stream() {
        let (watch, mut sent) = watch();
        let first = wait(&watch, 10);
        for id in created(&mut sent) {
            heard(&watch, id, Some(11), None);
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
