//! Work that begins a while later, and needs no task until then.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::task::{coop::Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep};

/// Does `work` once: after `delay`, or as soon as the returned waker is woken or the runtime shuts
/// down. What the work spawns is dropped in that last case.
///
/// Must be called inside a runtime that does not end meanwhile.
pub(crate) fn set<F>(delay: Duration, work: F) -> Waker
where
    F: FnOnce() + Send + 'static,
{
    let alarm = Arc::new(Alarm { work: Mutex::new(Some(work)), timer: OnceLock::new() });
    let waker = Waker::from(Arc::clone(&alarm));
    // Outside of the budget that the caller's task has for one poll: a task that has used it up is
    // woken again, but this is polled only once.
    let mut timer = Box::pin(unconstrained(sleep(delay)));
    if timer.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        waker.wake_by_ref();
    }
    // The timer has this waker until it is over, and so keeps itself alive.
    alarm.timer.get_or_init(|| timer);
    waker
}

struct Alarm<F> {
    work: Mutex<Option<F>>,
    timer: OnceLock<Pin<Box<Unconstrained<Sleep>>>>,
}

impl<F: FnOnce() + Send + 'static> Wake for Alarm<F> {
    fn wake(self: Arc<Self>) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::sync::oneshot;
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    /// What tokio wakes again is forgotten if all ends in the same poll.
    #[test]
    fn it_rings_also_if_whoever_set_it_had_done_all_that_a_task_may_do_at_a_time() {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let (sender, rang) = oneshot::channel();
        let _alarm = runtime.block_on(async {
            while has_budget_remaining() {
                consume_budget().await;
            }
            super::set(Duration::from_millis(5), move || sender.send(()).unwrap())
        });
        let limit = Duration::from_secs(1);
        runtime.block_on(async { tokio::time::timeout(limit, rang).await }).unwrap().unwrap();
    }
}
