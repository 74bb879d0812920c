//! Waiting: in order, in a crowd, and for how long.

use std::time::Duration;

use lockkit_core::driver::{Clock, ErrorKind};
use lockkit_core::memory::{Fault, MemoryDriver};
use lockkit_core::{AcquireOptions, Error, Failure, Locker, Operation, Wait};
use tokio::time::{Instant, sleep};

use crate::{TTL, set_up, set_up_locker, settle};

/// How many waiters of a locker have a place for a lock on a driver that gives places to all.
const PLACES: usize = 16;

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
async fn of_many_that_wait_few_have_places_unless_they_ask_for_order() {
    let (_, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    for _ in 0..10 * PLACES {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await });
    }
    settle().await;
    assert_eq!(locker.look("a").await.unwrap().waiters().len(), PLACES);
    for _ in 0..PLACES {
        let lock = lock.clone().fair().unwrap();
        tokio::spawn(async move { lock.acquire().await });
    }
    settle().await;
    assert_eq!(locker.look("a").await.unwrap().waiters().len(), 2 * PLACES);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_up_is_another_s_when_it_is_free() {
    let (backend, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let wait = |name: &str, patience| {
        let lock = lock.clone().labelled(name.parse().unwrap());
        tokio::spawn(async move { lock.acquire_timeout(patience).await })
    };
    let labels = async || {
        let seen = locker.look("a").await.unwrap();
        seen.waiters().iter().map(|waiter| waiter.label().unwrap().to_string()).collect::<Vec<_>>()
    };
    let (patience, slow) = (TTL / 100, TTL / 10);
    let short = wait("short", patience);
    for number in 2..PLACES {
        wait(&number.to_string(), TTL * 10);
    }
    settle().await;
    backend.faults().inject(Operation::Acquire, Fault::DelayAnswer(slow));
    let unanswered = wait("unanswered", patience * 2);
    settle().await;
    for name in ["next", "last"] {
        wait(name, TTL * 10);
    }

    // The release of the short one is slow to be carried out, as is what the other has asked.
    backend.faults().inject(Operation::Release, Fault::Delay(slow));
    assert!(matches!(short.await.unwrap(), Err(Error::TimedOut { .. })));
    assert!(matches!(unanswered.await.unwrap(), Err(Error::TimedOut { .. })));
    settle().await;
    let before = labels().await;
    assert_eq!(before.len(), PLACES, "{before:?}");
    assert!(["short", "unanswered"].iter().all(|gone| before.iter().any(|label| label == gone)));
    sleep(slow + patience).await;
    let after = labels().await;
    assert_eq!(after.len(), PLACES, "{after:?}");
    assert_eq!(after[PLACES - 2..], ["next", "last"]);
}

#[tokio::test(start_paused = true)]
async fn who_has_no_time_to_wait_takes_no_place() {
    let (backend, lock) = set_up();
    let guard = lock.acquire().await.unwrap();
    // For the first release, which is that of the guard where no place is left.
    backend.faults().inject(Operation::Release, Fault::Fail(ErrorKind::Denied));
    let outcome = lock.acquire_timeout(Duration::ZERO).await;
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    settle().await;
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Denied(_))), "{outcome:?}");
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
    let error = lock.acquire_timeout(TTL / 100).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("no answer"), "nobody is known to have it");
    assert_eq!(start.elapsed(), TTL / 100);
    sleep(TTL / 10).await;
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_somebody_that_times_out_in_the_middle_of_an_ask_was_for_somebody() {
    let (backend, lock) = set_up();
    let _guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire_timeout(TTL).await });
    settle().await;
    backend.faults().inject(Operation::Acquire, Fault::Hang);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { source: None, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_is_unreachable_within_a_lease() {
    for (wait, fault, expected) in [
        (Wait::Forever, Fault::Hang, ErrorKind::Unknown),
        (Wait::No, Fault::Hang, ErrorKind::Unknown),
        (Wait::Forever, Fault::LoseAnswer, ErrorKind::Unknown),
        (Wait::Forever, Fault::Fail(ErrorKind::Unreachable), ErrorKind::Unreachable),
    ] {
        let (backend, lock) = set_up();
        backend.faults().inject_always(Operation::Acquire, fault);
        let start = Instant::now();
        let error = lock.acquire_with(AcquireOptions::new().wait(wait)).await.unwrap_err();
        let Error::Unreachable(Failure { kind, .. }) = error else { panic!("{error:?}") };
        assert_eq!(kind, expected, "{fault:?}");
        assert!(start.elapsed() <= TTL + Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

/// What was never sent is no cause of an ask that was not answered.
#[tokio::test(start_paused = true)]
async fn a_silence_is_told_apart_from_an_ask_that_failed() {
    let (backend, lock) = set_up();
    let faults = backend.faults();
    faults.inject(Operation::Acquire, Fault::Fail(ErrorKind::Unreachable));
    faults.inject(Operation::Acquire, Fault::Hang);
    let error = lock.acquire().await.unwrap_err();
    let Error::Unreachable(Failure { kind, source, .. }) = error else { panic!("{error:?}") };
    assert_eq!(kind, ErrorKind::Unknown);
    let told =
        "no answer for the length of a lease; another ask failed: the backend cannot be reached";
    assert_eq!(source.to_string(), told);
    assert_eq!(source.source().unwrap().to_string(), "planned to fail");
}

/// The error is about the requests of which it speaks.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_long_ago_is_not_what_ends_a_wait() {
    let (backend, lock) = set_up();
    let _guard = lock.acquire().await.unwrap();
    backend.faults().inject(Operation::Acquire, Fault::LoseAnswer);
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    // By then it has been refused.
    sleep(TTL / 2).await;
    backend.faults().inject_always(Operation::Acquire, Fault::Fail(ErrorKind::Unreachable));
    let error = waiting.await.unwrap().unwrap_err();
    let Error::Unreachable(Failure { kind, .. }) = error else { panic!("{error:?}") };
    assert_eq!(kind, ErrorKind::Unreachable);
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
