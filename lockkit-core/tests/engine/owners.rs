//! Owners, who acquire again what they hold.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lockkit_core::driver::ErrorKind;
use lockkit_core::memory::Fault;
use lockkit_core::{AcquireOptions, Error, Operation, Owner, ReentrantLock, Wait};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{TTL, set_up, set_up_locker, settle};

#[tokio::test(start_paused = true)]
async fn an_owner_reenters_and_others_wait() {
    let (backend, lock) = set_up();
    let (me, you, once) = (Owner::new(), Owner::new(), AcquireOptions::new().wait(Wait::No));
    let outer = lock.acquire_as(&me, once).await.unwrap();
    let inner = lock.acquire_as(&me.clone(), once).await.unwrap();
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    let any: &dyn ReentrantLock = &lock;
    assert_eq!((lock.depth(&me), lock.depth(&you)), (2, 0));
    assert_eq!((any.depth(&me), any.depth(&you)), (2, 0));
    outer.release().await.unwrap();
    assert!(matches!(lock.acquire_as(&you, once).await, Err(Error::Taken { .. })));
    inner.release().await.unwrap();
    let guard = lock.acquire_as(&you, once).await.unwrap();

    backend.revoke(lock.name());
    guard.lost().await;
    assert!(matches!(lock.acquire_as(&you, once).await, Err(Error::Lost { .. })));
    drop(guard);
    drop(lock.acquire_as(&you, once).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_never_refused_its_own_hold() {
    let (_, lock) = set_up();
    let (me, once) = (Owner::new(), AcquireOptions::new().wait(Wait::No));
    let _outer = lock.acquire_as(&me, once).await.unwrap();
    let looking = std::thread::spawn({
        let (lock, me) = (lock.clone(), me.clone());
        move || (0..20_000).all(|_| lock.depth(&me) > 0)
    });
    for _ in 0..20_000 {
        drop(lock.acquire_as(&me, once).await.unwrap());
    }
    assert!(looking.join().unwrap());
}

#[tokio::test(start_paused = true)]
async fn one_owner_in_two_tasks_acquires_once() {
    let (_, lock) = set_up();
    let (me, blocker) = (Owner::new(), lock.acquire().await.unwrap());
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let (lock, me) = (lock.clone(), me.clone());
            tokio::spawn(async move { lock.acquire_as(&me, AcquireOptions::new()).await })
        })
        .collect();
    settle().await;
    blocker.release().await.unwrap();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap().unwrap());
    }
    assert_eq!(guards[0].owner(), guards[1].owner());
}

/// Whoever is first of an owner is not polled any more, and is granted nothing.
#[tokio::test(start_paused = true)]
async fn an_owner_waits_for_itself_no_longer_than_it_was_told() {
    let (_, lock) = set_up();
    let (me, _blocker) = (Owner::new(), lock.acquire().await.unwrap());
    let mut first = pin!(lock.acquire_as(&me, AcquireOptions::new()));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let start = Instant::now();
    let patience = AcquireOptions::new().wait(Wait::AtMost(TTL * 3));
    let outcome = lock.acquire_as(&me, patience).await;
    let Err(Error::TimedOut { waited, source, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((waited, start.elapsed()), (TTL * 3, TTL * 3));
    assert_eq!(source.unwrap().to_string(), "its owner was acquiring it already");
}

/// The first leaves at the moment when the time of the second is up.
#[tokio::test(start_paused = true)]
async fn an_owner_whose_time_is_up_asks_no_more() {
    let (backend, lock) = set_up();
    let (me, _blocker) = (Owner::new(), lock.acquire().await.unwrap());
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Box::pin(lock.acquire_as(&me, AcquireOptions::new()));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let patience = AcquireOptions::new().wait(Wait::AtMost(TTL / 10));
    let mut second = pin!(lock.acquire_as(&me, patience));
    assert!(second.as_mut().poll(&mut context).is_pending());
    sleep(TTL / 10).await;
    backend.faults().inject(Operation::Acquire, Fault::Hang);
    drop(first);
    let Poll::Ready(outcome) = second.as_mut().poll(&mut context) else { panic!("it has asked") };
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn those_of_an_owner_learn_together_that_nobody_answers() {
    for fault in [Fault::Hang, Fault::Fail(ErrorKind::Unreachable)] {
        let (backend, lock) = set_up();
        for _ in 0..10_000 {
            backend.faults().inject(Operation::Acquire, fault);
        }
        let me = Owner::new();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let (lock, me) = (lock.clone(), me.clone());
            tasks.spawn(async move { lock.acquire_as(&me, AcquireOptions::new()).await });
        }
        while let Some(outcome) = tasks.join_next().await {
            let outcome = outcome.unwrap();
            assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
        }
        assert!(start.elapsed() < TTL * 3 / 2, "{:?}", start.elapsed());
        // Whoever comes later has a lease of its own.
        let (later, options) = (Instant::now(), AcquireOptions::new());
        assert!(lock.acquire_as(&me, options).await.is_err());
        assert!(later.elapsed() >= TTL, "{:?}", later.elapsed());
    }
}

/// What is left of it gives up when those after it have their answers.
#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_caller_has_gone_says_nothing_to_the_next_of_its_owner() {
    // A little longer than a lease, and for much longer.
    for waited in [TTL * 102 / 100, TTL * 3] {
        let (backend, lock) = set_up();
        let (me, _guard) = (Owner::new(), lock.acquire().await.unwrap());
        let wait = |wait| {
            let (lock, me) = (lock.clone(), me.clone());
            let options = AcquireOptions::new().wait(wait);
            tokio::spawn(async move { lock.acquire_as(&me, options).await })
        };
        backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(TTL / 5));
        let first = wait(Wait::AtMost(TTL / 10));
        settle().await;
        let second = wait(Wait::Forever);
        settle().await;
        let third = wait(Wait::Forever);
        settle().await;
        first.abort();
        sleep(waited).await;
        assert!(!second.is_finished());
        backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(TTL / 100));
        second.abort();
        sleep(TTL / 2).await;
        assert!(!third.is_finished(), "it has its answers");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_many_locks_reenters_each() {
    let (_, locker) = set_up_locker();
    let (me, once) = (Owner::new(), AcquireOptions::new().wait(Wait::No));
    let locks: Vec<_> = (0..100).map(|name| locker.lock(&name.to_string()).unwrap()).collect();
    let mut guards = Vec::new();
    for lock in locks.iter().chain(&locks) {
        guards.push(lock.acquire_as(&me, once).await.unwrap());
    }
    assert!(locks.iter().all(|lock| lock.depth(&me) == 2));
}

/// They may be of two backends, which lock nothing for each other.
#[tokio::test(start_paused = true)]
async fn an_owner_holds_the_locks_of_each_locker_apart() {
    let [(_, one), (_, other)] = [set_up(), set_up()];
    let (me, you, once) = (Owner::new(), Owner::new(), AcquireOptions::new().wait(Wait::No));
    let _held = one.acquire_as(&me, once).await.unwrap();
    assert_eq!((one.depth(&me), other.depth(&me)), (1, 0));
    let _held_too = other.acquire_as(&me, once).await.unwrap();
    assert_eq!((one.depth(&me), other.depth(&me)), (1, 1));
    let outcome = other.acquire_as(&you, once).await;
    assert!(matches!(outcome, Err(Error::Taken { .. })), "{outcome:?}");
}
