//! What is to begin a while later, without a task until then.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Begins `work` after `delay`, or when the waker that is returned is woken before, or when the runtime
/// ends, which then drops what is spawned.
///
/// To be called inside a runtime that does not end meanwhile.
pub(crate) fn set<F>(delay: Duration, work: F) -> Waker
where
    F: FnOnce() + Send + 'static,
{
    let alarm = Arc::new(Alarm { work: Mutex::new(Some(work)), timer: Mutex::default() });
    let waker = Waker::from(Arc::clone(&alarm));
    let mut timer = Box::pin(sleep(delay));
    // Nothing is locked, since it may be over by now.
    if timer.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        waker.wake_by_ref();
    }
    // It has this waker until then, and so keeps itself.
    *lock(&alarm.timer) = Some(timer);
    waker
}

struct Alarm<F> {
    work: Mutex<Option<F>>,
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl<F: FnOnce() + Send + 'static> Wake for Alarm<F> {
    fn wake(self: Arc<Self>) {
        let work = lock(&self.work).take();
        if let Some(work) = work {
            work();
        }
    }
}

/// Nothing panics while it is locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
