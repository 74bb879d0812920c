//! What all locks of one locker share.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::driver::{Driver, DriverError};
use crate::nursery::Nursery;
use crate::turns::Turns;
use crate::{Error, LockName, Operation, Result};

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) clock: Clock,
    /// Waiters of this locker that take turns in asking.
    pub(crate) turns: Arc<Turns>,
    /// Holds that have no keeper yet.
    pub(crate) nursery: Nursery,
    /// Cancelled when the locker is shut down.
    pub(crate) stopping: CancellationToken,
    /// Keepers run on the runtime that made the locker, or else the first that uses it.
    runtime: OnceLock<Handle>,
    keepers: TaskTracker,
}

impl Engine {
    pub(crate) fn new(driver: Arc<dyn Driver>, clock: Clock) -> Self {
        Self {
            driver,
            clock,
            turns: Arc::default(),
            nursery: Nursery::default(),
            stopping: CancellationToken::new(),
            runtime: Handle::try_current().map(OnceLock::from).unwrap_or_default(),
            keepers: TaskTracker::new(),
        }
    }

    /// Says no if the locker was shut down or there is no runtime to keep a lock on.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.stopping.is_cancelled() {
            return Err(Error::ShutDown { driver: self.driver.id() });
        }
        if self.runtime.get().is_none() {
            let current = Handle::try_current()
                .map_err(|error| Error::config("tokio runtime", error.to_string()))?;
            self.runtime.get_or_init(|| current);
        }
        Ok(())
    }

    /// Polls `future` inside the locker's runtime, to which its timers then belong, so that locks
    /// work from any executor.
    pub(crate) async fn inside<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let _inside = self.enter();
            future.as_mut().poll(cx)
        })
        .await
    }

    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.runtime.get().map(Handle::enter)
    }

    /// Without a runtime the work is dropped: nothing was ever sent.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(self.keepers.track_future(work));
        }
    }

    /// Ends every hold and every wait, and returns when their traces are gone, or `limit` is over.
    pub(crate) async fn shut_down(&self, limit: Duration) {
        self.stopping.cancel();
        self.keepers.close();
        if tokio::time::timeout(limit, self.keepers.wait()).await.is_err() {
            let left = self.keepers.len();
            tracing::warn!(driver = self.driver.id(), left, "claims left to run out by themselves");
        }
        self.driver.close().await;
    }

    pub(crate) fn lost(&self, name: &LockName) -> Error {
        Error::Lost { name: name.clone(), driver: self.driver.id() }
    }

    pub(crate) fn failed(
        &self,
        operation: Operation,
        name: &LockName,
        error: DriverError,
    ) -> Error {
        Error::of_driver(self.driver.id(), operation, Some(name.clone()), error)
    }
}
