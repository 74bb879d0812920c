use std::fmt;
use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::select;
use tokio::time::sleep;
use zookeeper_client::{Error, EventType};

use crate::error::Failure;
use crate::room::{Part, Watcher};
use crate::session::{Session, is_same, within};
use lockkit_core::driver::Limit;

/// A watch on one node. Dropping it takes it off the server.
pub(crate) struct Watch {
    session: Arc<Session>,
    path: Arc<str>,
    is_set: Arc<AtomicBool>,
    news: Pin<Box<dyn Future<Output = News> + Send>>,
    /// Declared after `news`, so that it is dropped after it.
    _part: Part,
}

/// The pause between attempts to set a watch that cannot be set.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is no such node.
    Gone,
    /// The session has ended.
    Ended,
    /// The watch could not be set.
    Blind,
}

impl Watch {
    /// The watch is set when its news is first waited for. `None` if the session has no room for
    /// it.
    pub(crate) fn new(
        session: Arc<Session>,
        path: Arc<str>,
        limit: Duration,
        watcher: Watcher,
    ) -> Option<Self> {
        let part = session.room().take(&path, watcher)?;
        let is_set = Arc::new(AtomicBool::new(false));
        let news = Box::pin(watch(session.clone(), path.clone(), limit, is_set.clone()));
        Some(Self { session, path, is_set, news, _part: part })
    }

    pub(crate) fn is_on(&self, session: &Arc<Session>, path: &str) -> bool {
        is_same(&self.session, session) && *self.path == *path
    }

    /// Whether the node was there when the watch was set, and no news has come until now. If so,
    /// the node stood at every moment that an earlier answer of the servers proves: they tell a
    /// session what has happened in order. If not, the watch must not be asked again.
    pub(crate) async fn sees(&mut self) -> bool {
        // Asking it for news would set it.
        if !self.is_set.load(Ordering::Acquire) {
            return false;
        }
        select! {
            biased;
            _ = self.news() => false,
            () = ready(()) => self.is_set.load(Ordering::Acquire),
        }
    }

    /// What becomes of the node. Must not be asked again once it has told.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the watch stays.
    pub(crate) async fn news(&mut self) -> News {
        (&mut self.news).await
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("path", &self.path).finish_non_exhaustive()
    }
}

#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice, as captured and as moved"
)]
fn watch(
    session: Arc<Session>,
    path: Arc<str>,
    limit: Duration,
    is_set: Arc<AtomicBool>,
) -> impl Future<Output = News> {
    async move {
        loop {
            // Not `exists`, which would leave a watch even where there is no node, and whose news
            // servers keep from those who may not read the node. Boxed, since waiters are many and
            // wait for long.
            let request = session.client().get_and_watch_data(&path);
            // What is read along with the watch is dropped before the wait.
            let answer = Box::pin(within(Limit::new(limit), request)).await;
            match answer.map(|answer| answer.map(|(_, _, watcher)| watcher)) {
                Ok(Ok(watcher)) => {
                    is_set.store(true, Ordering::Release);
                    // The library panics if its task ends first, as with the runtime.
                    let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
                    let event = select! {
                        biased;
                        () = session.given_up() => return News::Ended,
                        event = changed => event,
                    };
                    let Ok(event) = event else { return News::Ended };
                    is_set.store(false, Ordering::Release);
                    match event.event_type {
                        EventType::NodeDeleted => return News::Gone,
                        // A watch on one node hears of no state of a session except its end.
                        EventType::Session => return News::Ended,
                        // Somebody wrote to the node: it is there.
                        _ => (),
                    }
                }
                Ok(Err(Error::NoNode)) => return News::Gone,
                _ if session.has_ended() => return News::Ended,
                Ok(Err(error)) => {
                    if Failure::from(error).is_answer() {
                        // The answer to whoever may not read the node, for one: asking at once
                        // leads here again.
                        sleep(PAUSE).await;
                    }
                    return News::Blind;
                }
                Err(_) => return News::Blind,
            }
        }
    }
}
