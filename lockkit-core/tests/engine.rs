//! The engine over the memory driver with planned faults, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockkit_core::driver::{Claim, Clock, Driver, ErrorKind};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{
    AcquireOptions, DistributedLock, Error, Label, Lease, Lock, LockExt as _, Locker, Operation,
    Owner, Renew, Wait,
};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(10);

fn set_up() -> (MemoryDriver, Lock) {
    let (backend, locker) = set_up_locker();
    (backend, locker.lock("a").unwrap())
}

fn set_up_locker() -> (MemoryDriver, Locker) {
    let backend = MemoryDriver::new();
    let locker = Locker::builder(backend.clone()).ttl(TTL).build().unwrap();
    (backend, locker)
}

/// Lets every task run until all wait for time to pass.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// As of processes that share a backend and end without a word.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_the_dead() {
    let (backend, lock) = set_up();
    let of_the_dead = Claim::new(lock.name().clone(), TTL);
    backend.try_acquire(&of_the_dead).await.unwrap();
    backend.try_acquire(&Claim::new(lock.name().clone(), TTL).waiting()).await.unwrap();
    sleep(TTL).await;
    lock.acquire().await.unwrap().release().await.unwrap();
    settle().await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_taken_kept_and_let_go() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    sleep(TTL * 20).await;
    assert!(guard.is_held());
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    settle().await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_without_waiting_for_a_poll() {
    let (_, lock) = set_up();
    let mut holder = lock.acquire().await.unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..20 {
        let (lock, sender) = (lock.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send((place, guard)).unwrap();
        });
        settle().await;
    }
    let start = Instant::now();
    for expected in 0..20 {
        holder.release().await.unwrap();
        let (place, guard) = served.recv().await.unwrap();
        assert_eq!(place, expected);
        holder = guard;
    }
    assert_eq!(Instant::now(), start, "a hand-over waited for time to pass");
}

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

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::LoseAnswer);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.fencing_token().unwrap().get(), 1, "the retry was another grant");
    guard.release().await.unwrap();
    sleep(TTL * 2).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_try_whose_answer_was_lost_blocks_nobody() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::LoseAnswer);
    let outcome = lock.try_acquire().await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    settle().await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_lands_after_its_claim_was_given_up_is_cleaned_up() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::Delay(TTL / 2));
    assert!(lock.try_acquire().await.is_err());
    sleep(TTL / 2).await;
    // It has landed by now; a release is repeated after it, long before its lease is over.
    sleep(TTL / 4).await;
    assert!(backend.is_idle());
}

/// The last release is carried out before that, and answered when nothing can land any more.
#[tokio::test(start_paused = true)]
async fn a_request_that_lands_beside_a_slow_release_is_cleaned_up() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::Delay(TTL * 99 / 100));
    for _ in 0..4 {
        backend.faults().inject(Operation::Release, Fault::DelayAnswer(TTL / 5));
    }
    assert!(lock.try_acquire().await.is_err());
    sleep(TTL * 6 / 5).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_tried_again_until_the_deadline() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Fail(ErrorKind::Unreachable)] {
        backend.faults().inject(Operation::Renew, fault);
    }
    sleep(TTL * 3).await;
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_loss_fires_before_the_lease_ends_beside_a_renewal_that_hangs() {
    let (backend, lock) = set_up();
    let start = Instant::now();
    let guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Renew, Fault::Hang);
    // The hanging renewal is carried out, which the holder cannot know.
    guard.lost().await;
    assert!(start.elapsed() < TTL);
    assert!(!guard.is_held());
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_never_counts_as_held_again() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL).renew(Renew::Never)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    sleep(TTL * 9 / 10).await;
    // Carried out in time, but answered after the guard said that the hold was lost.
    backend.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL * 19 / 100));
    let (extended, ()) = tokio::join!(guard.extend(TTL), guard.lost());
    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hold_taken_away_is_reported() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    backend.revoke(lock.name());
    guard.lost().await;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_hold_taken_away_is_reported_also_after_a_renewal_that_failed() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    for _ in 0..20 {
        backend.faults().inject(Operation::Renew, Fault::Fail(ErrorKind::Unreachable));
    }
    sleep(TTL / 2).await;
    backend.revoke(lock.name());
    let start = Instant::now();
    guard.lost().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_is_born_with_what_is_left_of_it() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(TTL / 5));
    let guard = lock.acquire().await.unwrap();
    let left = guard.valid_for().unwrap();
    assert!(left <= TTL - TTL / 5, "{left:?} counts from the answer");
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_counts_from_the_last_ask() {
    let (_, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    sleep(TTL / 5).await;
    guard.release().await.unwrap();
    let pushed = waiting.await.unwrap();
    assert!(pushed.valid_for().unwrap() <= TTL - TTL / 5, "it counts from the push");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_over_before_the_last_refusal_is_not_believed() {
    let (backend, lock) = set_up();
    let at = |time: u64| tokio::time::sleep_until(Instant::now() + Duration::from_millis(time));
    let holder = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    at(1_000).await;
    let lost = [Fault::LoseRequest; 3].into_iter();
    // The waiter's last ask lands after the grant that is pushed to it meanwhile has run out.
    for fault in lost.chain([Fault::Delay(Duration::from_millis(1_900))]) {
        backend.faults().inject(Operation::Acquire, fault);
    }
    at(8_600).await;
    holder.release().await.unwrap();
    at(700).await;
    let next = lock.try_acquire().await.unwrap().unwrap();
    at(1_700).await;
    assert!(next.is_held() && !waiting.is_finished(), "two guards believe");
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
async fn an_older_renewal_does_not_undo_an_extension() {
    let (backend, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL)).unwrap();
    let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
    backend.faults().inject(Operation::Renew, Fault::DelayAnswer(TTL * 19 / 100));
    sleep(TTL * 35 / 100).await;
    guard.extend(TTL * 3).await.unwrap();
    sleep(TTL * 5).await;
    let left = guard.valid_for().unwrap();
    assert!(left > TTL * 3 / 2, "renewed for {left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_machine_has_lost_its_holds() {
    let (backend, clock) = (MemoryDriver::new(), Clock::simulated());
    let locker = Locker::builder(backend).ttl(TTL).clock(clock.clone()).build().unwrap();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let start = Instant::now();
    clock.suspend(TTL * 2);
    assert!(!guard.is_held());
    guard.lost().await;
    assert_eq!(Instant::now(), start, "the loss waited for a timer");
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_suspended_machine_wakes_who_waits() {
    let (backend, clock) = (MemoryDriver::new(), Clock::simulated());
    let locker = Locker::builder(backend).ttl(TTL).clock(clock.clone()).build().unwrap();
    let lock = locker.lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire_timeout(TTL * 2).await }
    });
    settle().await;
    let start = Instant::now();
    clock.suspend(TTL * 2);
    assert!(matches!(waiting.await.unwrap(), Err(Error::TimedOut { .. })));
    assert_eq!(Instant::now(), start, "the end of the wait was waited for by a timer");
}

#[tokio::test(start_paused = true)]
async fn a_wait_times_out_in_all_and_says_what_went_wrong() {
    let (backend, lock) = set_up();
    let start = Instant::now();
    for _ in 0..20 {
        backend.faults().inject(Operation::Acquire, Fault::Fail(ErrorKind::Unreachable));
    }
    let patience = Duration::from_millis(300);
    let error = lock.acquire_timeout(patience).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(std::error::Error::source(&error).is_some(), "{error:?}");
    assert_eq!(start.elapsed(), patience);
    assert!(error.to_string().contains("`a`") && error.to_string().contains("memory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_says_nothing_of_a_failure_that_is_over() {
    let (backend, lock) = set_up();
    let _guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Acquire, Fault::Fail(ErrorKind::Unreachable));
    let error = lock.acquire_timeout(TTL).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(std::error::Error::source(&error).is_none(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_in_the_middle_of_an_ask_leaves_nothing() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(TTL / 10));
    let start = Instant::now();
    let outcome = lock.acquire_timeout(TTL / 100).await;
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    assert_eq!(start.elapsed(), TTL / 100);
    sleep(TTL / 10).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_is_unreachable_within_a_lease() {
    for (wait, fault) in [
        (Wait::Forever, Fault::Hang),
        (Wait::No, Fault::Hang),
        (Wait::Forever, Fault::Fail(ErrorKind::Unreachable)),
    ] {
        let (backend, lock) = set_up();
        for _ in 0..1000 {
            backend.faults().inject(Operation::Acquire, fault);
        }
        let start = Instant::now();
        let error = lock.acquire_with(AcquireOptions::new().wait(wait)).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        assert!(start.elapsed() <= TTL + Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_backend_is_final() {
    let (backend, lock) = set_up();
    for (kind, expected) in [
        (ErrorKind::Denied, "refuses"),
        (ErrorKind::Capacity, "no room"),
        (ErrorKind::Foreign, "something else"),
        (ErrorKind::Misconfigured, "set up"),
    ] {
        backend.faults().inject(Operation::Acquire, Fault::Fail(kind));
        let error = lock.acquire().await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("acquire lock `a`"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_answered_says_so_and_goes_on() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Release, Fault::LoseRequest);
    let start = Instant::now();
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    assert_eq!(start.elapsed(), TTL / 5);
    sleep(TTL / 5).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_locker_tells_who_holds_and_breaks_a_hold() {
    let (backend, _) = set_up_locker();
    let label = |text: &str| Label::new(text).unwrap();
    let locker = Locker::builder(backend.clone()).ttl(TTL).label(label("me")).build().unwrap();
    assert_eq!(locker.look("a").await.unwrap().holder(), None);

    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(TTL * 2).await;
    let status = locker.look("a").await.unwrap();
    let holder = status.holder().unwrap();
    assert_eq!((holder.owner(), holder.called()), (guard.owner(), Some(&label("me"))));
    assert_eq!(holder.fencing_token(), guard.fencing_token());
    assert_eq!(holder.since(), Some(TTL * 2));
    assert!(holder.remaining().unwrap() >= TTL / 2);
    assert_eq!(status.waiters().len(), 1);
    assert_eq!(locker.held().await.unwrap(), std::slice::from_ref(&status));

    assert_eq!(locker.break_hold("a", Some(status.waiters()[0].owner())).await.unwrap(), None);
    assert!(guard.is_held());
    let broken = locker.break_hold("a", Some(guard.owner())).await.unwrap().unwrap();
    assert_eq!(broken.owner(), guard.owner());
    let next = waiting.await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    guard.lost().await;
    assert!(next.is_held());
    assert!(matches!(locker.look("").await, Err(Error::InvalidName { .. })));
}

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

#[tokio::test(start_paused = true)]
async fn an_owner_reenters_and_others_wait() {
    let (backend, lock) = set_up();
    let (me, you, once) = (Owner::new(), Owner::new(), AcquireOptions::new().wait(Wait::No));
    let outer = lock.acquire_as(&me, once).await.unwrap();
    let inner = lock.acquire_as(&me.clone(), once).await.unwrap();
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    assert_eq!((lock.depth(&me), lock.depth(&you)), (2, 0));
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

#[tokio::test(start_paused = true)]
async fn work_is_cancelled_when_the_hold_is_lost() {
    let (backend, lock) = set_up();
    let any: &dyn DistributedLock = &lock;
    for done in [
        lock.run(|hold| async move { hold.fencing_token() }).await,
        any.run(|hold| async move { hold.fencing_token() }).await,
    ] {
        assert!(done.unwrap().is_some());
    }
    let running = tokio::spawn({
        let lock = lock.clone();
        async move { lock.run(|_| std::future::pending::<()>()).await }
    });
    settle().await;
    backend.revoke(lock.name());
    let outcome = running.await.unwrap();
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
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
    let start = Instant::now();
    let guard = bounded.acquire().await.unwrap();
    guard.lost().await;
    assert_eq!(start.elapsed(), TTL * 5);
    settle().await;
    assert!(bounded.try_acquire().await.unwrap().is_some(), "the lock was not let go");
}

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

#[tokio::test(start_paused = true)]
async fn a_crowd_is_answered_as_soon_as_one() {
    const CROWD: usize = 200;
    const WHILE: Duration = Duration::from_millis(20);
    let (backend, locker) = set_up_locker();
    let taken = locker.lock("a").unwrap();
    let guard = taken.acquire().await.unwrap();
    let start = Instant::now();
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(WHILE));
    assert!(taken.try_acquire().await.unwrap().is_none());
    let alone = start.elapsed();
    let start = Instant::now();
    let tries: Vec<_> = (0..CROWD)
        .flat_map(|number| {
            [taken.clone(), locker.lock(&number.to_string()).unwrap()].map(|lock| {
                backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(WHILE));
                tokio::spawn(async move { lock.try_acquire().await.unwrap() })
            })
        })
        .collect();
    let mut guards = Vec::new();
    for outcome in tries {
        guards.extend(outcome.await.unwrap());
    }
    assert_eq!(guards.len(), CROWD);
    assert!(guards.iter().all(|guard| guard.name() != taken.name()));
    assert_eq!(start.elapsed(), alone);

    // One that goes away from a crowd leaves no more than one that came alone.
    let waiters: Vec<_> = (0..CROWD)
        .map(|_| {
            let lock = taken.clone();
            backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(WHILE));
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    settle().await;
    waiters.iter().for_each(|waiter| waiter.abort());
    drop((guard, guards));
    sleep(TTL).await;
    assert!(backend.is_idle());
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

#[tokio::test(start_paused = true)]
async fn an_answer_wakes_its_task_once() {
    let (backend, lock) = set_up();
    let slow = Fault::DelayAnswer(Duration::from_millis(1));
    backend.faults().inject(Operation::Acquire, slow);
    let (wakes, guard) = wakes_until_done(lock.acquire()).await;
    assert_eq!(wakes, 1, "of an acquisition");
    backend.faults().inject(Operation::Release, slow);
    let (wakes, released) = wakes_until_done(guard.unwrap().release()).await;
    assert_eq!(wakes, 1, "of a release");
    released.unwrap();
}
