//! The end of a locker.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkit_core::driver::ErrorKind;
use lockkit_core::memory::Fault;
use lockkit_core::{AcquireOptions, Error, Locker, Operation, Owner, Wait};
use tokio::time::{Instant, timeout};

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
