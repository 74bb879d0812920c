//! Leases of a length of one's own.

use std::time::Duration;

use lockkit_core::driver::ErrorKind;
use lockkit_core::memory::Fault;
use lockkit_core::{AcquireOptions, Error, Lease, LeasedLock, Locker, Operation, Renew};
use tokio::time::{Instant, sleep, timeout};

use crate::{TTL, set_up, settle};

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_kept_is_refused_before_any_request() {
    let (backend, lock) = set_up();
    for operation in [Operation::Acquire, Operation::Renew] {
        backend.faults().inject(operation, Fault::Fail(ErrorKind::Denied));
    }
    let (short, long) = (Duration::from_millis(49), Duration::from_secs(24 * 60 * 60 + 1));
    let zero = Lease::new(TTL).max_hold(Duration::ZERO);
    for lease in [Lease::new(Duration::ZERO), Lease::new(short), Lease::new(long), zero] {
        let refused = lock.clone().leased(lease);
        assert!(matches!(refused, Err(Error::Config { .. })), "{lease:?}: {refused:?}");
        let refused = Locker::builder(backend.clone()).lease(lease).build();
        assert!(matches!(refused, Err(Error::Config { .. })), "{lease:?}: {refused:?}");
    }
    for ttl in [Duration::ZERO, short, long] {
        let refused = lock.acquire_with(AcquireOptions::new().ttl(ttl)).await;
        assert!(matches!(refused, Err(Error::Config { .. })), "{ttl:?}: {refused:?}");
    }
    // The fault waited for the first request that was sent.
    assert!(matches!(lock.acquire().await, Err(Error::Denied { .. })));

    let lock = lock.leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    for ttl in [Duration::ZERO, short, long] {
        let refused = guard.extend(ttl).await;
        assert!(matches!(refused, Err(Error::Config { .. })), "{ttl:?}: {refused:?}");
    }
    assert!(matches!(guard.extend(TTL).await, Err(Error::Denied { .. })));
    assert!(guard.is_held(), "a refused extension ended the hold");
}

/// What is handed over has begun when its owner asked last.
#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_is_a_whole_one_also_after_a_wait() {
    let (_, lock) = set_up();
    let never = lock.clone().leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    let guard = lock.acquire().await.unwrap();
    let whole = guard.valid_for();
    let waiting = tokio::spawn(async move { never.acquire_leased(AcquireOptions::new()).await });
    settle().await;
    sleep(TTL / 5).await;
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard.valid_for(), whole);
}

#[tokio::test(start_paused = true)]
async fn a_lease_can_be_extended_and_bounded() {
    let (_, lock) = set_up();
    let never = Lease::new(TTL).renew(Renew::Never);
    let guard =
        lock.clone().leased(never).unwrap().acquire_leased(AcquireOptions::new()).await.unwrap();
    sleep(TTL / 2).await;
    guard.extend(TTL * 3).await.unwrap();
    sleep(TTL * 2).await;
    assert!(guard.is_held());
    guard.lost().await;
    drop(guard);

    let bounded = lock.leased(Lease::new(TTL).max_hold(TTL * 5)).unwrap();
    // A bound stands, as one of a locker does, until there is another.
    let longer = bounded.clone().leased(Lease::new(TTL * 2)).unwrap();
    let sooner = longer.clone().leased(Lease::new(TTL).max_hold(TTL * 3)).unwrap();
    for (lock, longest) in [(bounded, TTL * 5), (longer, TTL * 5), (sooner, TTL * 3)] {
        let start = Instant::now();
        let guard = lock.acquire().await.unwrap();
        timeout(longest * 2, guard.lost()).await.expect("the hold goes on");
        assert_eq!(start.elapsed(), longest);
        settle().await;
        assert!(lock.try_acquire().await.unwrap().is_some(), "the lock was not let go");
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_by_less_than_is_left_shortens_nothing() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    let left = guard.valid_for();
    guard.extend(TTL / 10).await.unwrap();
    assert_eq!(guard.valid_for(), left);
    sleep(TTL * 9 / 10).await;
    assert!(guard.is_held());
    assert!(lock.try_acquire().await.unwrap().is_none(), "the backend has let it go");
    drop(guard);
    settle().await;
    assert!(backend.is_idle());
}

/// When it was answered, the backend had counted for a while.
#[tokio::test(start_paused = true)]
async fn an_extension_counts_from_its_request() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    let late = TTL * 19 / 100;
    backend.faults().inject(Operation::Renew, Fault::DelayAnswer(late));
    guard.extend(TTL * 2).await.unwrap();
    let left = guard.valid_for().unwrap();
    assert!(left > TTL, "{left:?}: it was not extended");
    assert!(left <= TTL * 2 - late, "{left:?} count from the answer");
}

#[tokio::test(start_paused = true)]
async fn a_leased_guard_that_is_released_has_freed_its_lock() {
    let (backend, lock) = set_up();
    let lease = Lease::new(TTL / 2);
    let lock = lock.leased(lease).unwrap();
    let any: &dyn LeasedLock = &lock;
    assert_eq!((lock.lease(), any.lease()), (lease, lease));
    let guard = any.acquire_leased(AcquireOptions::new()).await.unwrap();
    assert!(guard.valid_for().unwrap() <= TTL / 2);
    guard.release().await.unwrap();
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn an_extended_lease_is_cleared_up_for_as_long() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    guard.extend(TTL * 300).await.unwrap();
    // The backend is away for longer than the first lease.
    for _ in 0..11 {
        backend.faults().inject(Operation::Release, Fault::Fail(ErrorKind::Unreachable));
    }
    drop(guard);
    sleep(TTL * 30).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_cannot_be_extended() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    for is_known in [false, true] {
        let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
        backend.revoke(guard.name());
        if is_known {
            guard.lost().await;
        }
        let outcome = guard.extend(TTL * 2).await;
        assert!(matches!(outcome, Err(Error::Lost { .. })), "known: {is_known}: {outcome:?}");
        assert!(!guard.is_held());
        sleep(TTL * 2).await;
        assert!(backend.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_renewal_does_not_undo_an_extension() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    backend.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL * 19 / 100));
    sleep(TTL * 35 / 100).await;
    guard.extend(TTL * 3).await.unwrap();
    // The renewal is answered.
    sleep(TTL * 25 / 100).await;
    assert!(guard.valid_for().unwrap() > TTL * 5 / 2);
    sleep(TTL * 5).await;
    let left = guard.valid_for().unwrap();
    assert!(left > TTL * 3 / 2, "renewed for {left:?}");
}
