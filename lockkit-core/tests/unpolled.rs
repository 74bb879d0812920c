//! Callers who begin a request and do not come back to it, as in a `select!` of a loop that is busy
//! elsewhere, on a driver that has room for one request at a time.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, Inspect, OwnerId, Release, Renewal,
};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{
    AcquireOptions, Capabilities, Diagnosis, Holder, Lease, LockName, LockStatus, Locker, Namespace,
};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(10);
const TRIP: Duration = Duration::from_millis(1);
/// By when what is left alone goes on by itself.
const SOON: Duration = Duration::from_millis(50);

/// A backend of which a request has the one connection until it is answered.
#[derive(Debug, Default)]
struct OneAtATime {
    backend: MemoryDriver,
    connection: Mutex<()>,
}

impl OneAtATime {
    async fn trip(&self) -> MutexGuard<'_, ()> {
        let connection = self.connection.lock().await;
        sleep(TRIP).await;
        connection
    }
}

#[async_trait]
impl Driver for OneAtATime {
    fn id(&self) -> &'static str {
        "one-at-a-time"
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        let _connection = self.trip().await;
        self.backend.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        let _connection = self.trip().await;
        self.backend.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        let _connection = self.trip().await;
        self.backend.release(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for OneAtATime {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let _connection = self.trip().await;
        self.backend.look(name).await
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let _connection = self.trip().await;
        self.backend.held(namespace).await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let _connection = self.trip().await;
        self.backend.break_hold(name, owner).await
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        let _connection = self.trip().await;
        self.backend.diagnose(namespace).await
    }
}

fn locker() -> Locker {
    Locker::builder(OneAtATime::default()).ttl(TTL).build().unwrap()
}

fn begin(future: Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Leaves the future alone that has begun: whether others can work meanwhile, and what comes of it.
async fn nobody_is_held_up<T>(locker: &Locker, begun: impl Future<Output = T>) -> T {
    let held = locker.lock("held").unwrap().acquire().await.unwrap();
    let mut begun = pin!(begun);
    begin(begun.as_mut());
    let start = Instant::now();
    locker.lock("other").unwrap().acquire().await.unwrap().release().await.unwrap();
    // What was begun takes a trip, and then each of these does.
    assert!(start.elapsed() <= SOON + 4 * TRIP, "{:?}", start.elapsed());
    sleep(TTL * 3).await;
    assert!(held.is_held(), "it was not renewed");
    held.release().await.unwrap();
    begun.await
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_left_alone_holds_up_nobody() {
    let locker = locker();
    let lock = locker.lock("a").unwrap();
    let guard = nobody_is_held_up(&locker, lock.acquire()).await.unwrap();
    assert!(guard.is_held());
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_left_alone_holds_up_nobody() {
    let locker = locker();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    nobody_is_held_up(&locker, guard.release()).await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_hold_hears_of_a_release_that_is_left_alone() {
    let locker = locker();
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    let (hold, start) = (guard.hold(), Instant::now());
    let mut watching = pin!(hold.ended());
    begin(watching.as_mut());
    let mut release = pin!(guard.release());
    begin(release.as_mut());
    watching.await;
    assert!(start.elapsed() <= SOON, "{:?}", start.elapsed());
    release.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_is_left_alone_holds_up_nobody() {
    let locker = locker();
    let lock = locker.lock("a").unwrap().leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    nobody_is_held_up(&locker, guard.extend(TTL * 2)).await.unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn looks_that_are_left_alone_hold_up_nobody() {
    let locker = locker();
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    let status = nobody_is_held_up(&locker, locker.look("a")).await.unwrap();
    assert_eq!(status.holder().unwrap().owner(), guard.owner());
    let held = nobody_is_held_up(&locker, locker.held()).await.unwrap();
    assert!(held.iter().any(|status| status.name() == guard.name()));
    nobody_is_held_up(&locker, locker.diagnose()).await.unwrap();
    let broken = nobody_is_held_up(&locker, locker.break_hold("a", None)).await.unwrap();
    assert_eq!(broken.unwrap().owner(), guard.owner());
}

/// Who queues for the connection has it, sooner or later, and does nothing with it.
#[tokio::test(start_paused = true)]
async fn many_that_are_left_alone_hold_up_nobody() {
    let locker = locker();
    let locks = ["a", "b", "c", "d"].map(|name| locker.lock(name).unwrap());
    let mut begun: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire())).collect();
    begun.iter_mut().for_each(|begun| begin(begun.as_mut()));
    assert!(locker.lock("other").unwrap().acquire().await.unwrap().is_held());
    for begun in begun {
        assert!(begun.await.unwrap().is_held());
    }
}
