//! What is dropped, or left alone, anywhere.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{Locker, Operation};
use tokio::time::{sleep, timeout};

use crate::{TTL, set_up, settle};

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_anywhere_frees_its_lock() {
    let (backend, lock) = set_up();
    drop(lock.acquire().await.unwrap());
    settle().await;
    assert!(backend.is_idle(), "dropped in its runtime");

    let guard = lock.acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    settle().await;
    assert!(backend.is_idle(), "dropped in a thread without a runtime");

    let guard = lock.acquire().await.unwrap();
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("in the critical section");
    });
    assert!(panicked.await.is_err());
    settle().await;
    assert!(backend.is_idle(), "dropped by a panic");
}

/// Polls `future` so many times and drops it; says whether it was ready before.
async fn poll_and_drop<F: Future>(polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut context).is_ready() {
            return true;
        }
        settle().await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn futures_dropped_after_any_poll_leave_nothing() {
    let slow = Fault::DelayAnswer(Duration::from_millis(1));
    for fault in [None, Some(slow), Some(Fault::LoseAnswer), Some(Fault::LoseRequest)] {
        for polls in 0..10 {
            let (backend, lock) = set_up();
            let plan = |operation| {
                fault.into_iter().for_each(|fault| backend.faults().inject(operation, fault))
            };
            plan(Operation::Acquire);
            poll_and_drop(polls, lock.acquire()).await;
            sleep(TTL * 2).await;
            assert!(backend.is_idle(), "acquire, {fault:?}, {polls} polls");

            let guard = lock.acquire().await.unwrap();
            plan(Operation::Acquire);
            poll_and_drop(polls, lock.acquire()).await;
            guard.release().await.unwrap();
            sleep(TTL * 2).await;
            assert!(backend.is_idle(), "wait, {fault:?}, {polls} polls");

            let guard = lock.acquire().await.unwrap();
            plan(Operation::Release);
            poll_and_drop(polls, guard.release()).await;
            sleep(TTL * 2).await;
            assert!(backend.is_idle(), "release, {fault:?}, {polls} polls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_lets_go_at_once() {
    let (backend, lock) = set_up();
    let trip = Duration::from_millis(1);
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(trip));
    assert!(!poll_and_drop(1, lock.acquire()).await);
    assert!(!backend.is_idle(), "it was granted, and nobody knows");
    sleep(2 * trip).await;
    settle().await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_not_polled_holds_up_nobody() {
    let backend = MemoryDriver::new();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let mut stalled = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_secs(1), &mut stalled).await.is_err());
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    settle().await;
    guard.release().await.unwrap();
    // It was first, so the lock is its own, polled or not; dropping it is enough.
    drop(stalled);
    drop(next.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_not_polled_keeps_its_place() {
    let (_, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    let mut stalled = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_secs(1), &mut stalled).await.is_err());
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    sleep(TTL * 3).await;
    guard.release().await.unwrap();
    sleep(TTL * 3).await;
    assert!(!next.is_finished(), "it was overtaken");
    assert!(stalled.await.unwrap().is_held());
}
