//! The seam between a caller's future and the work it started.
//!
//! The work is one owned future. As long as the caller polls, the caller drives it, so that an
//! uncontended acquisition waits for no other task. When the caller goes away, it goes on as a task
//! of its own. So dropping a future of this crate, at any point, abandons nothing that was sent to
//! a backend.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::engine::Engine;

/// The caller's end: resolves to what the work reports, or to `None` if the runtime is gone.
pub(crate) struct Driven<T> {
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    report: oneshot::Receiver<T>,
    engine: Arc<Engine>,
}

impl<T> Driven<T> {
    pub(crate) fn new<F>(engine: &Arc<Engine>, work: impl FnOnce(Caller<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, report) = oneshot::channel();
        let caller = Caller { report: Some(sender) };
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(engine.track(work(caller)));
        Self { work: Some(work), report, engine: Arc::clone(engine) }
    }

    fn hand_over(&mut self) {
        if let Some(work) = self.work.take() {
            self.engine.spawn(work);
        }
    }
}

impl<T> Future for Driven<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        if !this.engine.is_alive() {
            // Its timers have ended, and would panic.
            this.work = None;
        }
        if let Some(work) = &mut this.work {
            // Timers of the work belong to the locker's runtime, which may outlive the caller's.
            let _inside = this.engine.enter();
            if work.as_mut().poll(cx).is_ready() {
                this.work = None;
            }
        }
        let report = match this.work {
            // The work reports when it is polled, here: to listen for it would have this task wake
            // itself, and another thread with it.
            Some(_) => match this.report.try_recv() {
                Err(TryRecvError::Empty) => return Poll::Pending,
                report => report.ok(),
            },
            None => ready!(Pin::new(&mut this.report).poll(cx)).ok(),
        };
        this.hand_over();
        Poll::Ready(report)
    }
}

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        self.report.close();
        self.hand_over();
    }
}

/// The work's end.
pub(crate) struct Caller<T> {
    report: Option<oneshot::Sender<T>>,
}

impl<T> Caller<T> {
    /// Answers the caller, unless it was answered before or is gone: then the report comes back.
    pub(crate) fn report(&mut self, report: T) -> Result<(), T> {
        match self.report.take() {
            Some(sender) => sender.send(report),
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
