//! How often an answer wakes who waits for it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockkit_core::driver::Clock;
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{Locker, Operation};
use tokio::time::sleep;

use crate::TTL;

#[tokio::test(start_paused = true)]
async fn an_answer_wakes_its_task_once() {
    let backend = MemoryDriver::new();
    // A locker of another test that is shut down rouses all who go by the clock of the machine.
    let builder = Locker::builder(backend.clone()).ttl(TTL).clock(Clock::simulated());
    let lock = builder.build().unwrap().lock("a").unwrap();
    let slow = Fault::DelayAnswer(Duration::from_millis(1));
    backend.faults().inject(Operation::Acquire, slow);
    let (wakes, guard) = wakes_until_done(lock.acquire()).await;
    assert_eq!(wakes, 1, "of an acquisition");
    backend.faults().inject(Operation::Release, slow);
    let (wakes, released) = wakes_until_done(guard.unwrap().release()).await;
    assert_eq!(wakes, 1, "of a release");
    released.unwrap();
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Drives a future whose answer takes a millisecond, and counts how often its task is woken.
async fn wakes_until_done<T>(future: impl Future<Output = T>) -> (usize, T) {
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut context).is_pending());
    sleep(Duration::from_millis(2)).await;
    let Poll::Ready(outcome) = future.poll(&mut context) else { panic!("it was answered") };
    (wakes.0.load(Ordering::Relaxed), outcome)
}
