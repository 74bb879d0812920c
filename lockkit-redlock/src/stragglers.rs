//! What goes on in the background, and its end.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Requests that nobody waits for any more, and what follows from them.
#[derive(Debug, Default)]
pub(crate) struct Stragglers {
    tasks: TaskTracker,
    over: CancellationToken,
}

impl Stragglers {
    /// Sees the work through, unless it is [ended](Self::end) before.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        self.tasks.spawn(async move {
            _ = over.run_until_cancelled_owned(work).await;
        });
    }

    /// Waits for all of them, for `limit` at most.
    pub(crate) async fn wait(&self, limit: Duration) {
        self.tasks.close();
        _ = timeout(limit, self.tasks.wait()).await;
    }

    /// Drops what is still under way, and what comes later. By then the drivers of the nodes must be
    /// closed: before that, they need not bear it.
    pub(crate) async fn end(&self) {
        self.over.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
