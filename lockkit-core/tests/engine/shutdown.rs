//! The end of a locker.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Claim, Driver, DriverError, ErrorKind, Inspect, OwnerId, Release, Renewal,
};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{
    AcquireOptions, Capabilities, Diagnosis, Error, Holder, LockName, LockStatus, Locker,
    Namespace, Operation, Owner, Wait,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{TTL, set_up_locker, settle};

#[tokio::test(start_paused = true)]
async fn shutting_down_ends_holds_and_waits() {
    let (backend, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    // For what the locker itself holds, and for what somebody else does.
    let other = Locker::new(backend.clone());
    let others = other.lock("b").unwrap().acquire().await.unwrap();
    let waiting = ["a", "b"].map(|name| {
        let lock = locker.lock(name).unwrap();
        tokio::spawn(async move { lock.acquire().await })
    });
    settle().await;
    let start = Instant::now();
    locker.shutdown().await;
    assert_eq!(Instant::now(), start, "nobody waits for a timer");
    assert!(!guard.is_held() && others.is_held());
    for waiting in waiting {
        assert!(matches!(waiting.await.unwrap(), Err(Error::ShutDown { .. })));
    }
    assert!(matches!(lock.try_acquire().await, Err(Error::ShutDown { .. })));
    others.release().await.unwrap();
    assert!(backend.is_idle());
}

/// Nobody polls the owner's first acquisition, which is not told either then.
#[tokio::test(start_paused = true)]
async fn shutting_down_ends_the_wait_for_an_acquisition_of_the_same_owner() {
    for wait in [Wait::Forever, Wait::AtMost(TTL * 10)] {
        let (_, locker) = set_up_locker();
        let lock = locker.lock("a").unwrap();
        let _guard = lock.acquire().await.unwrap();
        let (me, options) = (Owner::new(), AcquireOptions::new().wait(wait));
        let mut first = pin!(lock.acquire_as(&me, options));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        let second = tokio::spawn({
            let (lock, me) = (lock.clone(), me.clone());
            async move { lock.acquire_as(&me, options).await }
        });
        settle().await;
        locker.shutdown().await;
        let start = Instant::now();
        let outcome = timeout(TTL * 20, second).await.unwrap().unwrap();
        assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{wait:?}: {outcome:?}");
        assert_eq!(Instant::now(), start, "{wait:?}: it waited for a timer");
    }
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_for_the_end_of_what_cannot_be_released() {
    let (backend, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    for _ in 0..1_000 {
        backend.faults().inject(Operation::Release, Fault::Fail(ErrorKind::Unreachable));
    }
    let start = Instant::now();
    locker.shutdown().await;
    let waited = start.elapsed();
    assert!((TTL..TTL + Duration::from_secs(5)).contains(&waited), "{waited:?}");
    assert!(Locker::new(backend).lock("a").unwrap().try_acquire().await.unwrap().is_some());
}

/// Answers what is asked about locks, and nothing else.
#[derive(Debug, Default)]
struct Mute(MemoryDriver);

#[async_trait]
impl Driver for Mute {
    fn id(&self) -> &'static str {
        "mute"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.0.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.0.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.0.release(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for Mute {
    async fn look(&self, _: &LockName) -> Result<LockStatus, DriverError> {
        pending().await
    }

    async fn held(&self, _: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        pending().await
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        sleep(TTL / 10).await;
        self.0.break_hold(name, owner).await
    }

    async fn diagnose(&self, _: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_for_a_break_and_not_for_who_only_looks() {
    let locker = Locker::builder(Mute::default()).ttl(TTL).build().unwrap();
    let start = Instant::now();
    let looks = async { tokio::join!(locker.look("a"), locker.held(), locker.diagnose()) };
    let both = async { tokio::join!(looks, locker.shutdown()) };
    let ((look, held, found), ()) = timeout(TTL * 10, both).await.unwrap();
    for outcome in [look.err(), held.err(), found.err()] {
        assert!(matches!(outcome, Some(Error::ShutDown { .. })), "{outcome:?}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);

    let driver = Arc::new(Mute::default());
    let [holder, locker] = [(); 2].map(|()| Locker::builder_from_arc(Arc::clone(&driver) as _));
    let lock = holder.ttl(TTL).build().unwrap().lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let locker = locker.ttl(TTL).build().unwrap();
    let (broken, ()) = tokio::join!(locker.break_hold("a", None), locker.shutdown());
    assert!(broken.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_for_requests_that_callers_drive() {
    let slow = Fault::Delay(TTL / 10);
    let (backend, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    backend.faults().inject(Operation::Acquire, slow);
    let shut_down = async {
        locker.shutdown().await;
        backend.is_idle()
    };
    let (outcome, idle) = tokio::join!(lock.acquire(), shut_down);
    assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{outcome:?}");
    assert!(idle, "an ask was under way");

    let (backend, locker) = set_up_locker();
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    backend.faults().inject(Operation::Release, slow);
    let shut_down = async {
        locker.shutdown().await;
        backend.is_idle()
    };
    let (outcome, idle) = tokio::join!(guard.release(), shut_down);
    outcome.unwrap();
    assert!(idle, "a release was under way");
}
