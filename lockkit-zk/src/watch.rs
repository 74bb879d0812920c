use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use zookeeper_client::{Error, EventType};

use crate::session::{Limit, Session, is_same};

/// A watch on one node. Dropping it takes it off the server.
pub(crate) struct Watch {
    session: Arc<Session>,
    path: String,
    news: Pin<Box<dyn Future<Output = News> + Send>>,
}

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
    /// It is set when its news are first waited for.
    pub(crate) fn new(session: Arc<Session>, path: String, limit: std::time::Duration) -> Self {
        let news = Box::pin(watch(session.clone(), path.clone(), limit));
        Self { session, path, news }
    }

    pub(crate) fn is_on(&self, session: &Arc<Session>, path: &str) -> bool {
        is_same(&self.session, session) && self.path == path
    }

    /// What becomes of the node. To be asked no more after it was told.
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

async fn watch(session: Arc<Session>, path: String, limit: std::time::Duration) -> News {
    loop {
        // Not `exists`, which would leave a watch also where there is no node.
        let request = session.client().get_and_watch_data(&path);
        match Limit::new(limit).bound(request).await {
            Ok(Ok((_, _, watcher))) => match watcher.changed().await.event_type {
                EventType::NodeDeleted => return News::Gone,
                // One watch hears of no other state of a session than its end.
                EventType::Session => return News::Ended,
                // Somebody wrote to the node: it is there.
                _ => (),
            },
            Ok(Err(Error::NoNode)) => return News::Gone,
            _ if session.has_ended() => return News::Ended,
            Ok(Err(_)) | Err(_) => return News::Blind,
        }
    }
}
