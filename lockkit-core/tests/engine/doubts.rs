//! Requests that are answered late, or never.

use std::time::Duration;

use lockkit_core::driver::{Claim, Clock, Driver as _, ErrorKind};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{Error, Locker, Operation};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::{TTL, set_up, settle};

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
async fn an_ask_that_was_not_sent_needs_no_release() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Acquire, Fault::Fail(ErrorKind::Unreachable));
    // For the first release, which is that of the guard.
    backend.faults().inject(Operation::Release, Fault::Fail(ErrorKind::Denied));
    let outcome = lock.try_acquire().await;
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    settle().await;
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Denied(_))), "{outcome:?}");
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

/// It was asked again, and granted, before the first request landed.
#[tokio::test(start_paused = true)]
async fn a_request_that_lands_after_its_hold_has_ended_is_cleaned_up() {
    for held_for in [Duration::ZERO, TTL / 10] {
        for is_released in [true, false] {
            let (backend, lock) = set_up();
            backend.faults().inject(Operation::Acquire, Fault::Delay(TTL / 2));
            let guard = lock.acquire().await.unwrap();
            // By then it has a keeper.
            sleep(held_for).await;
            match is_released {
                true => guard.release().await.unwrap(),
                false => drop(guard),
            }
            settle().await;
            assert!(backend.is_idle(), "held for {held_for:?}, released: {is_released}");
            sleep(TTL * 3 / 4).await;
            assert!(backend.is_idle(), "held for {held_for:?}, released: {is_released}: it landed");
        }
    }
}

/// The last release is carried out before that, and answered when nothing can land any more.
#[tokio::test(start_paused = true)]
async fn a_request_that_lands_beside_a_slow_release_is_cleaned_up() {
    let (backend, lock) = set_up();
    // A lease after it was given up, which was a fifth of one after it was sent.
    backend.faults().inject(Operation::Acquire, Fault::Delay(TTL * 119 / 100));
    for _ in 0..5 {
        backend.faults().inject(Operation::Release, Fault::DelayAnswer(TTL * 4 / 25));
    }
    assert!(lock.try_acquire().await.is_err());
    sleep(TTL * 7 / 5).await;
    assert!(backend.is_idle());
}

/// It takes the lock at the end of its time, and no release is answered for longer than the lease
/// that began with the first one.
#[tokio::test(start_paused = true)]
async fn a_request_that_lands_while_no_release_is_answered_is_cleaned_up() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::Delay(TTL * 19 / 20));
    for _ in 0..5 {
        backend.faults().inject(Operation::Release, Fault::LoseRequest);
    }
    assert!(lock.try_acquire().await.is_err());
    sleep(TTL * 33 / 20).await;
    assert!(backend.is_idle(), "what it took runs out only later");
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
async fn what_cannot_be_released_is_left_when_its_lease_is_over() {
    let (backend, lock) = set_up();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let guard = lock.acquire().await.unwrap();
    for _ in 0..1_000 {
        backend.faults().inject(Operation::Release, Fault::Fail(ErrorKind::Unreachable));
    }
    drop(guard);
    sleep(TTL / 2).await;
    assert!(tasks() > before, "it was given up before its end");
    sleep(TTL).await;
    assert_eq!(tasks(), before, "its end is not awaited for ever");
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_is_born_with_what_is_left_of_it() {
    let (backend, lock) = set_up();
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(TTL / 5));
    let guard = lock.acquire().await.unwrap();
    let left = guard.valid_for().unwrap();
    assert!(left <= TTL - TTL / 5, "{left:?} counts from the answer");
}

/// The machine was suspended for most of its lease.
#[tokio::test(start_paused = true)]
async fn a_late_grant_that_is_all_but_over_is_renewed_at_once() {
    let (backend, clock) = (MemoryDriver::new(), Clock::simulated());
    let locker = Locker::builder(backend.clone()).ttl(TTL).clock(clock.clone()).build().unwrap();
    let lock = locker.lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let whole = guard.valid_for().unwrap();
    guard.release().await.unwrap();
    let suspended = TTL * 9 / 10;
    let suspend = async || {
        settle().await;
        clock.suspend(suspended);
    };
    for left in (2..20).step_by(3).map(Duration::from_millis) {
        let late = Fault::DelayAnswer(whole - suspended - left);
        backend.faults().inject(Operation::Acquire, late);
        let (guard, ()) = tokio::join!(lock.acquire(), suspend());
        let guard = guard.unwrap();
        tokio::time::sleep(TTL).await;
        assert!(guard.is_held(), "lost with {left:?} left");
        guard.release().await.unwrap();
    }
}

/// The machine was suspended for most of it.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_answered_after_its_lease_is_not_handed_out() {
    let (backend, clock) = (MemoryDriver::new(), Clock::simulated());
    let locker = Locker::builder(backend.clone()).ttl(TTL).clock(clock.clone()).build().unwrap();
    let lock = locker.lock("a").unwrap();
    // Only the margin is left of the lease then, and the call is not given up yet.
    let late = Fault::DelayAnswer(TTL * 95 / 1_000);
    let suspend = async || {
        settle().await;
        clock.suspend(TTL * 9 / 10);
    };
    backend.faults().inject(Operation::Acquire, late);
    let (outcome, ()) = tokio::join!(lock.try_acquire(), suspend());
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    settle().await;
    assert!(backend.is_idle());

    backend.faults().inject(Operation::Acquire, late);
    let (guard, ()) = tokio::join!(lock.acquire(), suspend());
    assert!(guard.unwrap().is_held());
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

/// As of processes that share a backend and end without a word.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_the_dead() {
    for is_handed_over in [false, true] {
        let (backend, lock) = set_up();
        let of_the_dead = Claim::new(lock.name().clone(), TTL);
        backend.try_acquire(&of_the_dead).await.unwrap();
        backend.try_acquire(&Claim::new(lock.name().clone(), TTL).waiting()).await.unwrap();
        sleep(TTL / 2).await;
        if is_handed_over {
            backend.release(&of_the_dead).await.unwrap();
        }
        sleep(TTL / 2).await;
        lock.acquire().await.unwrap().release().await.unwrap();
        settle().await;
        assert!(backend.is_idle());
    }
}
