use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// How far a request has come, which both its caller and whoever sees it through have to know. They
/// never run at the same time.
#[derive(Debug, Default)]
pub(super) struct Progress {
    is_sent: AtomicBool,
    is_left: AtomicBool,
}

impl Progress {
    pub(super) fn send(&self) {
        self.is_sent.store(true, Ordering::Release);
    }

    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }
}

/// Work that is seen through by a task if it is dropped before its end.
pub(super) struct Begun<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    progress: Arc<Progress>,
    runtime: Handle,
}

impl<T: Send + 'static> Begun<T> {
    pub(super) fn new(
        work: impl Future<Output = T> + Send + 'static,
        progress: Arc<Progress>,
        runtime: Handle,
    ) -> Self {
        Self { work: Some(Box::pin(work)), progress, runtime }
    }
}

impl<T: Send + 'static> Future for Begun<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.work {
            None => Poll::Pending,
            Some(work) => work.as_mut().poll(context).map(|output| {
                self.work = None;
                output
            }),
        }
    }
}

impl<T: Send + 'static> Drop for Begun<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.progress.is_left.store(true, Ordering::Release);
            // Its answer is in the registry.
            drop(self.runtime.spawn(async move { drop(work.await) }));
        }
    }
}
