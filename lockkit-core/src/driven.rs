//! The seam between a caller's future and the work it started.
//!
//! The work is one owned future. As long as the caller polls, the caller drives it, so that an
//! uncontended acquisition waits for no other task. When the caller goes away, or does not come
//! back, the work goes on as a task of its own. So dropping a future of this crate, at any point,
//! abandons nothing that was sent to a backend; and a future that is left alone keeps from others
//! nothing that a driver shares out among its requests.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;

use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::engine::Engine;

/// The caller's end: resolves to what the work reports, or to why it does not.
pub(crate) struct Driven<T> {
    work: Work,
    report: oneshot::Receiver<Result<T, NoReport>>,
    engine: Arc<Engine>,
}

/// Why work has ended without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReport {
    /// It was dropped with its runtime.
    Gone,
    /// It has panicked, in a task. If its caller drives it, the caller has the panic.
    Panicked,
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Work {
    New(Boxed),
    /// It waits for something.
    Begun(Arc<Begun>),
    /// It is done, or a task.
    Gone,
}

impl Work {
    /// Takes the work away from the caller, if the caller still drives it.
    fn take(&mut self) -> Option<Boxed> {
        match std::mem::replace(self, Self::Gone) {
            Self::New(work) => Some(work),
            Self::Begun(begun) => begun.stage().take().map(|stage| stage.work),
            Self::Gone => None,
        }
    }
}

/// Work that its caller has polled, and may not come back to.
#[derive(Debug)]
pub(crate) struct Begun(Mutex<Option<Stage>>);

/// Work, and the caller to wake if another takes it.
struct Stage {
    work: Boxed,
    caller: Waker,
}

impl<T> Driven<T> {
    pub(crate) fn new<F>(engine: &Arc<Engine>, work: impl FnOnce(Caller<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, report) = oneshot::channel();
        let caller = Caller { report: Some(sender) };
        let work = Work::New(Box::pin(work(caller)));
        Self { work, report, engine: Arc::clone(engine) }
    }

    /// Drives the work, if that is still up to the caller; says whether it is still to be
    /// driven.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        // Timers of the work belong to the locker's runtime, which may outlive the caller's.
        let inside = self.engine.enter();
        if inside.is_none() {
            // The timers have ended, and would panic.
            drop(self.work.take());
        }
        match std::mem::replace(&mut self.work, Work::Gone) {
            Work::New(mut work) => {
                // Held until the work is in the list.
                let _under_way = self.engine.under_way();
                if work.as_mut().poll(cx).is_pending() {
                    let begun = Begun::new(work, cx.waker());
                    self.engine.nursery.watch(&self.engine, &begun);
                    self.work = Work::Begun(begun);
                }
            }
            Work::Begun(begun) => {
                if begun.poll(cx) {
                    self.work = Work::Begun(begun);
                }
            }
            Work::Gone => (),
        }
        !matches!(self.work, Work::Gone)
    }

    fn hand_over(&mut self) {
        if let Work::Gone = self.work {
            return;
        }
        // Held until a task has the work.
        let _until_then = self.engine.under_way();
        if let Some(work) = self.work.take() {
            self.engine.spawn(work);
        }
    }
}

impl<T> Future for Driven<T> {
    type Output = Result<T, NoReport>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let report = match this.drive(cx) {
            // The work reports when it is polled, which is here: listening for the report would
            // have this task wake itself, and another thread with it.
            true => match this.report.try_recv() {
                Err(TryRecvError::Empty) => return Poll::Pending,
                report => report.ok(),
            },
            false => ready!(Pin::new(&mut this.report).poll(cx)).ok(),
        };
        this.hand_over();
        Poll::Ready(report.unwrap_or(Err(NoReport::Gone)))
    }
}

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        self.report.close();
        self.hand_over();
    }
}

impl Begun {
    fn new(work: Boxed, caller: &Waker) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Stage { work, caller: caller.clone() }))))
    }

    /// Drives the work for the caller; says whether there is more for the caller to drive.
    fn poll(&self, cx: &mut Context<'_>) -> bool {
        let mut stage = self.stage();
        let Some(Stage { work, caller }) = &mut *stage else { return false };
        let is_pending = work.as_mut().poll(cx).is_pending();
        match is_pending {
            true => caller.clone_from(cx.waker()),
            false => *stage = None,
        }
        is_pending
    }

    /// Whether there is more of the work.
    pub(crate) fn goes_on(&self) -> bool {
        match self.0.try_lock() {
            Ok(stage) => stage.is_some(),
            Err(error) => matches!(error, TryLockError::WouldBlock),
        }
    }

    /// Has the work go on without its caller, if there is more of it. Says whether to try again
    /// later, since the caller is driving the work at this moment.
    pub(crate) fn adopt(&self, engine: &Engine) -> bool {
        let stage = match self.0.try_lock() {
            Ok(mut stage) => stage.take(),
            Err(TryLockError::WouldBlock) => return true,
            // It has panicked, and the caller with it.
            Err(TryLockError::Poisoned(_)) => None,
        };
        if let Some(Stage { work, caller }) = stage {
            engine.spawn(work);
            // From now on the caller listens for the report.
            caller.wake();
        }
        false
    }

    fn stage(&self) -> MutexGuard<'_, Option<Stage>> {
        // Work that has panicked says so when it is polled again, or is dropped.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}

/// The work's end.
pub(crate) struct Caller<T> {
    report: Option<oneshot::Sender<Result<T, NoReport>>>,
}

impl<T> Caller<T> {
    /// Answers the caller, unless it was answered before or is gone: then the report comes back.
    pub(crate) fn report(&mut self, report: T) -> Result<(), T> {
        match self.report.take() {
            Some(sender) => match sender.send(Ok(report)) {
                Err(Ok(report)) => Err(report),
                _ => Ok(()),
            },
            None => Err(report),
        }
    }

    /// Returns when nobody waits for the report any more.
    pub(crate) fn gone(&mut self) -> impl Future<Output = ()> {
        poll_fn(|cx| match &mut self.report {
            Some(sender) => sender.poll_closed(cx),
            None => Poll::Ready(()),
        })
    }
}

impl<T> Drop for Caller<T> {
    fn drop(&mut self) {
        if let Some(sender) = self.report.take()
            && thread::panicking()
        {
            // The caller may be gone.
            _ = sender.send(Err(NoReport::Panicked));
        }
    }
}
