//! When requests leave, and who becomes ready with them: of several tasks that do, tokio hands some to
//! another thread, and wakes that one before the request is sent.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Change, Claim, Driver, DriverError, Release, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Capabilities, Lock, LockGuard, Locker};
use tokio::runtime::{Builder, Handle};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};

/// Long enough for the engine to have done what it does for a new hold, or after a request.
const QUIET: Duration = Duration::from_millis(100);
const TTL: Duration = Duration::from_secs(30);

/// A driver whose requests are sent by the task of a connection, as most are.
#[derive(Debug)]
struct Connected {
    backend: MemoryDriver,
    requests: mpsc::UnboundedSender<oneshot::Sender<()>>,
    ends: Arc<Ends>,
}

/// What the driver and the end of its connection share.
#[derive(Debug, Default)]
struct Ends {
    hints: Notify,
    renewals: AtomicUsize,
    listeners: AtomicUsize,
}

struct Connection {
    requests: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    ends: Arc<Ends>,
}

/// What there is when a request leaves.
#[derive(Debug, PartialEq, Eq)]
struct Scene {
    tasks: usize,
    /// Keepers that listen, so that none of them has run.
    listeners: usize,
}

fn connected() -> (Lock, Connection) {
    let (sender, requests) = mpsc::unbounded_channel();
    let ends = Arc::<Ends>::default();
    let backend = MemoryDriver::new();
    let driver = Connected { backend, requests: sender, ends: Arc::clone(&ends) };
    let locker = Locker::builder(driver).ttl(TTL).build().unwrap();
    (locker.lock("a").unwrap(), Connection { requests, ends })
}

impl Ends {
    fn scene(&self) -> Scene {
        let tasks = Handle::current().metrics().num_alive_tasks();
        Scene { tasks, listeners: self.listeners.load(Relaxed) }
    }
}

impl Connection {
    /// What there was when the next request came, which is then answered.
    async fn answer(&mut self) -> Scene {
        let request = self.requests.recv().await.unwrap();
        // Behind all that became ready with it.
        yield_now().await;
        let scene = self.ends.scene();
        request.send(()).unwrap();
        scene
    }

    /// Has the lock held by somebody who has a keeper.
    async fn hold(&mut self, lock: &Lock) -> LockGuard {
        let (guard, _) = tokio::join!(lock.acquire(), self.answer());
        sleep(QUIET).await;
        guard.unwrap()
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
        self.ends.renewals.fetch_add(1, Relaxed);
        self.backend.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.trip().await;
        self.backend.release(claim).await
    }

    async fn changed(&self, _: &Claim) -> Change {
        self.ends.listeners.fetch_add(1, Relaxed);
        let _listening = Listening(&self.ends.listeners);
        self.ends.hints.notified().await;
        Change::AskAgain
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_wakes_nobody_but_who_sends_it() {
    let (lock, mut connection) = connected();
    let ends = Arc::clone(&connection.ends);
    let (seen, mut scenes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            seen.send(connection.answer().await).unwrap();
        }
    });
    for _ in 0..2 {
        let before = ends.scene();
        let guard = lock.acquire().await.unwrap();
        assert_eq!(scenes.recv().await.unwrap(), before);

        sleep(QUIET).await;
        let before = ends.scene();
        assert_eq!(before.listeners, 1, "the hold has its keeper");
        guard.release().await.unwrap();
        assert_eq!(scenes.recv().await.unwrap(), before);
        sleep(QUIET).await;
        assert_eq!(ends.scene().listeners, 0, "and no longer than that");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_is_refreshed_twice_in_a_lease_and_no_more_than_thrice() {
    const LEASES: u32 = 100;
    let (lock, mut connection) = connected();
    let _guard = connection.hold(&lock).await;
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let end = Instant::now() + TTL * LEASES;
    let mut asks = 0;
    while timeout_at(end, connection.answer()).await.is_ok() {
        asks += 1;
    }
    assert!((2 * LEASES..=3 * LEASES).contains(&asks), "{asks} times in {LEASES} leases");
    waiting.abort();
}

/// A backend may tell of a release before it answers it.
#[tokio::test(start_paused = true)]
async fn what_is_being_released_is_not_renewed() {
    let (lock, mut connection) = connected();
    let guard = connection.hold(&lock).await;
    let answer = async {
        let request = connection.requests.recv().await.unwrap();
        connection.ends.hints.notify_waiters();
        sleep(Duration::from_millis(1)).await;
        request.send(()).unwrap();
    };
    let (released, ()) = tokio::join!(guard.release(), answer);
    released.unwrap();
    assert_eq!(connection.ends.renewals.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_watch_a_hold_are_told_before_its_release_is_answered() {
    let (lock, mut connection) = connected();
    let guard = connection.hold(&lock).await;
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
    let (lock, mut connection) = runtime.block_on(async { connected() });
    let guard = runtime.block_on(connection.hold(&lock));
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
