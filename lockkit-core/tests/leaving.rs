//! Requests leave at once: of several tasks that become ready with the one that sends a request, tokio
//! hands some to another thread, and wakes that one first.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Driver, DriverError, Inspect, Release, Renewal,
};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Capabilities, Locker};
use tokio::runtime::{Builder, Handle};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

/// Long enough for the engine to have done what it does for a new hold, or after a request.
const QUIET: Duration = Duration::from_millis(100);

/// A driver whose requests are sent by the task of a connection, as most are.
#[derive(Debug)]
struct Connected {
    backend: MemoryDriver,
    requests: mpsc::UnboundedSender<oneshot::Sender<()>>,
    hints: Arc<Notify>,
    renewals: Arc<AtomicUsize>,
    listeners: Arc<AtomicUsize>,
}

/// The end of its connection.
struct Connection {
    requests: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    hints: Arc<Notify>,
    renewals: Arc<AtomicUsize>,
    listeners: Arc<AtomicUsize>,
}

/// What there is when a request leaves.
#[derive(Debug, PartialEq, Eq)]
struct Scene {
    tasks: usize,
    /// Keepers that listen, so that none of them has run.
    listeners: usize,
}

fn connected() -> (Locker, Connection) {
    let (sender, requests) = mpsc::unbounded_channel();
    let (hints, renewals, listeners) = <(Arc<Notify>, Arc<_>, Arc<_>)>::default();
    let driver = Connected {
        backend: MemoryDriver::new(),
        requests: sender,
        hints: Arc::clone(&hints),
        renewals: Arc::clone(&renewals),
        listeners: Arc::clone(&listeners),
    };
    (Locker::new(driver), Connection { requests, hints, renewals, listeners })
}

fn scene(listeners: &AtomicUsize) -> Scene {
    let tasks = Handle::current().metrics().num_alive_tasks();
    Scene { tasks, listeners: listeners.load(Relaxed) }
}

impl Connection {
    /// What there was when the next request came, which is then answered.
    async fn answer(&mut self) -> Scene {
        let request = self.requests.recv().await.unwrap();
        // Behind all that became ready with it.
        yield_now().await;
        let scene = scene(&self.listeners);
        request.send(()).unwrap();
        scene
    }
}

impl Connected {
    async fn trip(&self) {
        let (sender, answer) = oneshot::channel();
        self.requests.send(sender).unwrap();
        answer.await.unwrap();
    }
}

struct Listening<'a>(&'a AtomicUsize);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[async_trait]
impl Driver for Connected {
    fn id(&self) -> &'static str {
        "connected"
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.trip().await;
        self.backend.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.renewals.fetch_add(1, Relaxed);
        self.backend.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.trip().await;
        self.backend.release(claim).await
    }

    async fn changed(&self, _: &Claim) -> Change {
        self.listeners.fetch_add(1, Relaxed);
        let _listening = Listening(&self.listeners);
        self.hints.notified().await;
        Change::AskAgain
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_wakes_nobody_but_who_sends_it() {
    let (locker, mut connection) = connected();
    let (listeners, lock) = (Arc::clone(&connection.listeners), locker.lock("a").unwrap());
    let (seen, mut scenes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            seen.send(connection.answer().await).unwrap();
        }
    });
    let here = || scene(&listeners);
    for _ in 0..2 {
        let before = here();
        let guard = lock.acquire().await.unwrap();
        assert_eq!(scenes.recv().await.unwrap(), before);

        sleep(QUIET).await;
        let before = here();
        assert_eq!(before.listeners, 1, "the hold has its keeper");
        guard.release().await.unwrap();
        assert_eq!(scenes.recv().await.unwrap(), before);
        sleep(QUIET).await;
        assert_eq!(here().listeners, 0, "and no longer than that");
    }
}

/// A backend may tell of a release before it answers it.
#[tokio::test(start_paused = true)]
async fn what_is_being_released_is_not_renewed() {
    let (locker, mut connection) = connected();
    let lock = locker.lock("a").unwrap();
    let (guard, _) = tokio::join!(lock.acquire(), connection.answer());
    sleep(QUIET).await;
    let answer = async {
        let request = connection.requests.recv().await.unwrap();
        connection.hints.notify_waiters();
        sleep(Duration::from_millis(1)).await;
        request.send(()).unwrap();
    };
    let (released, ()) = tokio::join!(guard.unwrap().release(), answer);
    released.unwrap();
    assert_eq!(connection.renewals.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_watch_a_hold_are_told_before_its_release_is_answered() {
    let (locker, mut connection) = connected();
    let lock = locker.lock("a").unwrap();
    let (guard, _) = tokio::join!(lock.acquire(), connection.answer());
    sleep(QUIET).await;
    let guard = guard.unwrap();
    let hold = guard.hold();
    let watch = tokio::spawn(async move { hold.ended().await });
    yield_now().await;
    let start = Instant::now();
    select! {
        released = guard.release() => panic!("nobody answered it: {released:?}"),
        told = watch => told.unwrap(),
    }
    assert!(start.elapsed() < QUIET, "{:?}", start.elapsed());
    connection.answer().await;
}

/// Nobody drives the release any more, nor the timers of who watches.
#[test]
fn those_who_watch_a_hold_are_told_though_its_runtime_does_not_go_on() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let (locker, mut connection) = runtime.block_on(async { connected() });
    let lock = locker.lock("a").unwrap();
    let acquiring = async { tokio::join!(lock.acquire(), connection.answer()).0.unwrap() };
    let guard = runtime.block_on(acquiring);
    let hold = guard.hold();
    let (mut ended, told) = (pin!(hold.ended()), Arc::new(Told::default()));
    let waker = Waker::from(Arc::clone(&told));
    assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    runtime.block_on(async {
        select! {
            biased;
            released = guard.release() => panic!("nobody answered it: {released:?}"),
            () = std::future::ready(()) => (),
        }
    });
    assert!(told.0.load(Relaxed));
}

#[derive(Default)]
struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}
