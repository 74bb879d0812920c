//! What all locks of one locker share.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{EnterGuard, Handle, TryCurrentError};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Clock;
use crate::crowd::Crowd;
use crate::driven::{Driven, NoReport};
use crate::driver::{Claim, Driver, DriverError, ErrorKind};
use crate::nursery::Nursery;
use crate::turns::Turns;
use crate::{Error, Label, LockName, Operation, Result, meter};

/// How long a driver may take to close.
const CLOSING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) clock: Clock,
    /// What its holders and waiters are called.
    pub(crate) label: Label,
    /// Waiters of this locker that take turns in asking.
    pub(crate) turns: Arc<Turns>,
    /// Claims that ask for the first time.
    pub(crate) crowd: Crowd,
    /// Holds that have no keeper yet.
    pub(crate) nursery: Nursery,
    /// Cancelled when the locker is being shut down.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the driver is closed, or about to be.
    pub(crate) closed: CancellationToken,
    /// Keepers run on the runtime that made the locker, or else the first that uses it.
    runtime: OnceLock<Runtime>,
    keepers: TaskTracker,
}

impl Engine {
    pub(crate) fn new(driver: Arc<dyn Driver>, clock: Clock, label: Label) -> Self {
        meter::describe();
        Self {
            driver,
            clock,
            label,
            turns: Arc::default(),
            crowd: Crowd::default(),
            nursery: Nursery::default(),
            stopping: CancellationToken::new(),
            closed: CancellationToken::new(),
            runtime: Runtime::current().map(OnceLock::from).unwrap_or_default(),
            keepers: TaskTracker::new(),
        }
    }

    /// Fails if the locker was shut down or there is no runtime to keep a lock on.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.stopping.is_cancelled() {
            return Err(self.shut_down_error());
        }
        if self.runtime.get().is_none() {
            let current = Runtime::current()
                .map_err(|error| Error::config("tokio runtime", error.to_string()))?;
            self.runtime.get_or_init(|| current);
        }
        if self.runtime.get().is_none_or(|runtime| runtime.alive().is_none()) {
            return Err(self.shut_down_error());
        }
        Ok(())
    }

    /// Polls `future` inside the locker's runtime, to which its timers then belong, so that locks
    /// work from any executor. `None` once that runtime is gone.
    pub(crate) async fn inside<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| match self.enter() {
            Some(_inside) => future.as_mut().poll(cx).map(Some),
            // Its timers have ended, and would panic.
            None => Poll::Ready(None),
        })
        .await
    }

    /// A request to the driver that belongs to no acquisition, and ends with its caller. A shutdown
    /// waits for none but a break.
    pub(crate) async fn request<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation,
        name: Option<&LockName>,
        request: impl Future<Output = Result<T, DriverError>> + Send + 'static,
    ) -> Result<T> {
        let stopping = self.stopping.clone();
        let requested = Driven::new(self, |mut caller| async move {
            tokio::select! {
                biased;
                () = caller.gone() => (),
                () = stopping.cancelled(), if operation != Operation::Break => (),
                // A caller that is gone does not want to know.
                answer = request => drop(caller.report(answer)),
            }
        });
        let answer = requested.await.map_err(|none| self.no_report_error(none, operation, name))?;
        answer.map_err(|error| self.failed_error(operation, name, error))
    }

    /// Enters the runtime, which does not end before the returned value is dropped: a timer of a
    /// runtime that has ended panics. `None` if there is no runtime, or if it is ending.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let runtime = self.runtime.get()?;
        let alive = runtime.alive()?;
        Some(Inside { _entered: runtime.handle.enter(), _alive: alive })
    }

    /// Makes a shutdown that begins later wait until this is dropped: for the time between a look
    /// at how things stand and the task that sees to it.
    pub(crate) fn under_way(&self) -> TaskTrackerToken {
        self.keepers.token()
    }

    /// Spawns the work. Without a runtime it is dropped: nothing was ever sent.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.handle.spawn(self.keepers.track_future(work));
        }
    }

    /// Ends every hold and every wait, and returns when their traces are gone, or `limit` is over.
    pub(crate) async fn shut_down(&self, limit: Duration) {
        self.stopping.cancel();
        // Waiters learn of this only from their clock: a second thing to listen to would take room.
        self.clock.rouse();
        self.nursery.rouse();
        self.keepers.close();
        let closed = self.inside(async {
            if tokio::time::timeout(limit, self.keepers.wait()).await.is_err() {
                let left = self.keepers.len();
                let driver = self.driver.id();
                tracing::warn!(driver, left, "claims left to run out by themselves");
            }
            // First, since whoever called this may leave while the driver closes.
            self.closed.cancel();
            close(&*self.driver).await;
        });
        // Once the runtime is gone the engine has no claims any more, but perhaps holds that a file
        // descriptor keeps.
        if closed.await.is_none() {
            self.closed.cancel();
            self.close_elsewhere().await;
        }
    }

    /// Closes the driver on a thread of its own: the caller's runtime, if there is one, need not have
    /// timers.
    async fn close_elsewhere(&self) {
        let driver = Arc::clone(&self.driver);
        let (report, closed) = oneshot::channel();
        let closing = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let outcome = runtime.map(|runtime| {
                runtime.block_on(close(&*driver));
                runtime.shutdown_background();
            });
            // The caller may be gone.
            _ = report.send(outcome);
        };
        let thread = std::thread::Builder::new().name("lockkit-close".into()).spawn(closing);
        let outcome = match thread {
            Ok(_) => closed.await.unwrap_or(Ok(())),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            let driver = self.driver.id();
            tracing::warn!(driver, %error, "the driver is closed only when it is dropped");
        }
    }

    /// Tells those who watch the process that a hold ended before it was released.
    pub(crate) fn tell_of_loss(&self, claim: &Claim) {
        let (lock, owner) = (claim.name(), claim.owner());
        if self.stopping.is_cancelled() {
            tracing::debug!(%lock, %owner, "ended by a shutdown");
            return;
        }
        meter::lost(self, lock);
        tracing::warn!(%lock, %owner, "lost");
    }

    pub(crate) fn shut_down_error(&self) -> Error {
        Error::ShutDown { driver: self.driver.id() }
    }

    /// Why a request, whose work has ended without a report, has no answer.
    pub(crate) fn no_report_error(
        &self,
        none: NoReport,
        operation: Operation,
        name: Option<&LockName>,
    ) -> Error {
        match none {
            // A runtime may end while its thread panics, which drops its tasks.
            NoReport::Panicked if self.enter().is_some() => {
                let error = DriverError::new(ErrorKind::Unknown, "the driver has panicked");
                self.failed_error(operation, name, error)
            }
            NoReport::Gone | NoReport::Panicked => self.shut_down_error(),
        }
    }

    pub(crate) fn lost_error(&self, name: &LockName) -> Error {
        Error::Lost { name: name.clone(), driver: self.driver.id() }
    }

    pub(crate) fn failed_error(
        &self,
        operation: Operation,
        name: Option<&LockName>,
        error: DriverError,
    ) -> Error {
        Error::of_driver(self.driver.id(), operation, name.cloned(), error)
    }
}

/// Gives a driver its time to close.
async fn close(driver: &dyn Driver) {
    if tokio::time::timeout(CLOSING, driver.close()).await.is_err() {
        tracing::warn!(driver = driver.id(), "the driver does not come to its end");
    }
}

#[derive(Debug)]
struct Runtime {
    handle: Handle,
    is_alive: Arc<RwLock<bool>>,
    _locker: oneshot::Sender<()>,
}

impl Runtime {
    fn current() -> std::result::Result<Self, TryCurrentError> {
        let handle = Handle::try_current()?;
        let (locker, locker_gone) = oneshot::channel::<()>();
        let is_alive = Arc::new(RwLock::new(true));
        let life = Life(Arc::clone(&is_alive));
        handle.spawn(async move {
            _ = locker_gone.await;
            drop(life);
        });
        Ok(Self { handle, is_alive, _locker: locker })
    }

    /// Keeps the runtime from ending until the result is dropped; `None` if it is ending or has
    /// ended.
    fn alive(&self) -> Option<RwLockReadGuard<'_, bool>> {
        // A writer that waits means that the runtime is ending.
        self.is_alive.try_read().ok().filter(|is_alive| **is_alive)
    }
}

/// Within a runtime that does not end meanwhile.
pub(crate) struct Inside<'a> {
    _entered: EnterGuard<'a>,
    _alive: RwLockReadGuard<'a, bool>,
}

/// Part of a task of the runtime, which drops its tasks before its timers end.
struct Life(Arc<RwLock<bool>>);

impl Drop for Life {
    /// Waits for those who are inside.
    fn drop(&mut self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}
