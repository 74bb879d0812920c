//! Holds: how they are kept, bounded, and lost.

use std::time::Duration;

use lockkit_core::driver::{Clock, ErrorKind};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{AcquireOptions, Error, Label, Lease, Locker, Operation, Renew};
use tokio::time::{Instant, sleep, timeout};

use crate::{TTL, set_up, set_up_locker, settle};

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
async fn a_renewal_is_tried_again_until_the_deadline() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Fail(ErrorKind::Unreachable)] {
        backend.faults().inject(Operation::Renew, fault);
    }
    sleep(TTL * 3).await;
    assert!(guard.is_held());
}

/// Renewals come in time until one hangs; the warning comes while there is still some time left.
#[tokio::test(start_paused = true)]
async fn the_end_is_told_ahead_where_no_renewal_comes_through() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    let warned = guard.ends_within(TTL / 2);
    let renewed = timeout(TTL * 20, warned).await;
    assert!(renewed.is_err(), "it was renewed all the time");

    let early = TTL / 5;
    backend.faults().inject(Operation::Renew, Fault::Hang);
    guard.ends_within(early).await;
    assert_eq!(guard.valid_for(), Some(early));
    let start = Instant::now();
    guard.ends_within(early).await;
    assert_eq!(Instant::now(), start);
    guard.lost().await;
    assert_eq!(start.elapsed(), early);
    guard.ends_within(early).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_is_told_ahead_of_the_longest_hold() {
    let (_, lock) = set_up();
    let lock = lock.leased(Lease::new(TTL).max_hold(TTL * 10)).unwrap();
    let start = Instant::now();
    let guard = lock.acquire().await.unwrap();
    guard.ends_within(TTL / 5).await;
    assert_eq!(start.elapsed(), TTL * 10 - TTL / 5);
    let (watched, hold) = (Instant::now(), guard.hold());
    drop(guard);
    hold.ends_within(Duration::ZERO).await;
    assert_eq!(Instant::now(), watched, "a hold that was given up has ended");
}

/// When it was answered, the backend had counted for a while.
#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_its_request() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    let late = TTL * 19 / 100;
    backend.faults().inject(Operation::Renew, Fault::DelayAnswer(late));
    // A renewal leaves by a third of the lease; the next one not before 54 % of it.
    sleep(TTL * 53 / 100).await;
    let left = guard.valid_for().unwrap();
    assert!(left > TTL / 2, "{left:?}: it was not renewed");
    assert!(left <= TTL - late, "{left:?} count from the answer");
}

#[tokio::test(start_paused = true)]
async fn a_loss_fires_before_the_lease_ends_beside_a_renewal_that_hangs() {
    let (backend, lock) = set_up();
    let start = Instant::now();
    let guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Renew, Fault::Hang);
    // The hanging renewal is carried out, which the holder cannot know.
    guard.lost().await;
    // What two clocks may drift apart.
    let margin = TTL / 100 + Duration::from_millis(2);
    assert!(start.elapsed() <= TTL - margin, "{:?}", start.elapsed());
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
async fn a_hold_taken_away_is_reported_also_while_a_renewal_is_under_way() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Renew, Fault::LoseRequest);
    // It left at a third of the lease or a little earlier, and fails after a fifth.
    sleep(TTL * 2 / 5).await;
    backend.revoke(lock.name());
    let start = Instant::now();
    guard.lost().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// What a test does with lockers that are to each other as machines.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_by_the_clock_of_the_machine_that_has_it() {
    let (sleeps, wakes) = (Clock::simulated(), Clock::simulated());
    let backend = MemoryDriver::new();
    let [sleeper, waker] = [&sleeps, &wakes].map(|clock| {
        let builder = Locker::builder(backend.clone()).ttl(TTL).clock(clock.clone());
        builder.build().unwrap().lock("a").unwrap()
    });
    let guard = waker.acquire().await.unwrap();
    sleeps.suspend(TTL * 2);
    assert!(sleeper.try_acquire().await.unwrap().is_none() && guard.is_held());
    guard.release().await.unwrap();

    let guard = sleeper.acquire().await.unwrap();
    sleeps.suspend(TTL * 2);
    assert!(waker.try_acquire().await.unwrap().is_some() && !guard.is_held());
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
    assert_eq!((holder.owner(), holder.label()), (guard.owner(), Some(&label("me"))));
    assert_eq!(holder.fencing_token(), guard.fencing_token());
    assert_eq!(holder.held_for(), Some(TTL * 2));
    assert!(holder.remaining().unwrap() >= TTL / 2);
    let [waiter] = status.waiters() else { panic!("{status:?}") };
    assert_eq!((waiter.waiting_for(), waiter.label()), (Some(TTL * 2), Some(&label("me"))));
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
