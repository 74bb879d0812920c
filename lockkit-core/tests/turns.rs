//! Waiters on a driver that keeps no order take turns in asking.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempt, Change, Claim, Clock, Driver, DriverError, ErrorKind, Grant, OwnerId, Release,
    Renewal, Taken,
};
use lockkit_core::{
    AcquireOptions, Capabilities, Error, Liveness, Lock, LockGuard, LockName, Locker, Owner,
    Result, Wait,
};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);

/// A backend without a queue: whoever asks first after a release has it.
#[derive(Clone, Debug, Default)]
struct Unordered {
    holders: Arc<Mutex<HashMap<LockName, OwnerId>>>,
    /// Counts the releases.
    freed: watch::Sender<u64>,
    /// Which of them each has heard of that was refused.
    heard: Arc<Mutex<HashMap<OwnerId, watch::Receiver<u64>>>>,
    asks: Arc<AtomicUsize>,
    health: Arc<Mutex<Health>>,
    /// Has news all the time.
    chatty: bool,
    /// Tells all who wait of a release.
    public: bool,
    tells: Tells,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tells {
    /// And declares it.
    #[default]
    Everybody,
    /// None of those who wait, although others may hear.
    Nobody,
    /// Those who wait, although others may hear nothing.
    Some,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Sound,
    /// Every ask takes a second.
    Slow,
    /// Every ask fails at once.
    Dead,
    /// No ask is ever answered.
    Stuck,
}

#[async_trait]
impl Driver for Unordered {
    fn id(&self) -> &'static str {
        "unordered"
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::new(Liveness::Lease);
        if self.tells == Tells::Some { capabilities } else { capabilities.notification() }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.asks.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let health = *self.health.lock().unwrap();
        match health {
            Health::Sound => (),
            Health::Slow => sleep(Duration::from_secs(1)).await,
            Health::Dead => return Err(DriverError::new(ErrorKind::Unreachable, "dead")),
            Health::Stuck => std::future::pending().await,
        }
        let mut holders = self.holders.lock().unwrap();
        let holder = *holders.entry(claim.name().clone()).or_insert(claim.owner());
        if holder == claim.owner() {
            return Ok(Attempt::Granted(Grant::new()));
        }
        self.heard.lock().unwrap().insert(claim.owner(), self.freed.subscribe());
        Ok(Attempt::Taken(match self.tells {
            Tells::Everybody => Taken::new(),
            Tells::Nobody => Taken::new().unheard(),
            Tells::Some => Taken::new().heard(),
        }))
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        Ok(Renewal::Held(Default::default()))
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.heard.lock().unwrap().remove(&claim.owner());
        let mut holders = self.holders.lock().unwrap();
        if holders.get(claim.name()) != Some(&claim.owner()) {
            return Ok(Release::NotHeld);
        }
        holders.remove(claim.name());
        self.freed.send_modify(|freed| *freed += 1);
        Ok(Release::Freed)
    }

    async fn changed(&self, claim: &Claim) -> Change {
        match self.chatty {
            true => sleep(Duration::from_millis(1)).await,
            false if self.tells == Tells::Nobody => std::future::pending().await,
            false => self.next_release(claim.owner()).await,
        }
        if self.public { Change::Freed } else { Change::AskAgain }
    }
}

impl Unordered {
    /// Returns once for what came since `owner` was refused, or heard last.
    async fn next_release(&self, owner: OwnerId) {
        let heard = self.heard.lock().unwrap().get(&owner).cloned();
        let Some(mut heard) = heard else { return std::future::pending().await };
        heard.changed().await.unwrap();
        self.heard.lock().unwrap().insert(owner, heard);
    }
}

/// Waits in a task.
fn wait_for(lock: &Lock, patience: Duration) -> JoinHandle<Result<LockGuard>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire_timeout(patience).await })
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// What is refused may have a place, and be handed the lock: so whoever asks has to listen.
/// Whoever has waited for longest has hardly any time left. If each of them asked in vain, nobody
/// would be served.
#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_served_as_fast_as_any() {
    let (served, asks) = rushed(|lock: Lock| async move {
        let begun = Instant::now();
        let outcome = lock.acquire_timeout(PATIENCE).await;
        if let Err(error) = &outcome {
            assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
            assert_eq!(begun.elapsed(), PATIENCE);
        }
        outcome.ok()
    })
    .await;
    assert!(served > 55, "{served} in a minute");
    assert!(asks < 2 * served, "{asks} asks");
}

/// How long they wait is to be seen only from those who have gone.
#[tokio::test(start_paused = true)]
async fn so_is_one_whose_people_go_away_by_themselves() {
    let (served, asks) = rushed(|lock: Lock| async move {
        let waiting = timeout(PATIENCE, lock.acquire());
        waiting.await.ok().map(Result::unwrap)
    })
    .await;
    assert!(served > 45, "{served} in a minute");
    assert!(asks < 2 * served, "{asks} asks");
}

/// Each would have asked in vain, had the backend been as slow as it was before.
#[tokio::test(start_paused = true)]
async fn a_backend_that_was_slow_is_asked_while_somebody_waits() {
    let backend = Unordered::default();
    *backend.health.lock().unwrap() = Health::Slow;
    let lock = Locker::builder(backend.clone()).ttl(LEASE).build().unwrap().lock("a").unwrap();
    let mut crowd = JoinSet::new();
    for _ in 0..10 {
        let lock = lock.clone();
        crowd.spawn(async move {
            lock.acquire_timeout(Duration::from_millis(1_500)).await.unwrap().release().await
        });
    }
    settle().await;
    *backend.health.lock().unwrap() = Health::Sound;
    for released in crowd.join_all().await {
        released.unwrap();
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

/// How many get a lock when four come in the time in which one is served, for a minute; and how
/// often it was asked for. Whoever waits without a limit has it before others have gone twice.
async fn rushed<F>(acquire: impl Fn(Lock) -> F) -> (usize, usize)
where
    F: Future<Output = Option<LockGuard>> + Send + 'static,
{
    let backend = Unordered::default();
    *backend.health.lock().unwrap() = Health::Slow;
    let lock = Locker::builder(backend.clone()).ttl(LEASE).build().unwrap().lock("a").unwrap();
    let mut crowd = JoinSet::new();
    let mut patient = None;
    for number in 0..240 {
        if number == 120 {
            let (lock, begun) = (lock.clone(), Instant::now());
            patient = Some(tokio::spawn(async move {
                lock.acquire().await.unwrap().release().await.unwrap();
                begun.elapsed()
            }));
        }
        let acquiring = acquire(lock.clone());
        crowd.spawn(async move {
            match acquiring.await {
                Some(guard) => guard.release().await.is_ok(),
                None => false,
            }
        });
        sleep(Duration::from_millis(250)).await;
    }
    let served = crowd.join_all().await.into_iter().filter(|served| *served).count();
    assert!(patient.unwrap().await.unwrap() < 3 * PATIENCE);
    (served, backend.asks.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn of_a_crowd_that_comes_at_once_one_asks() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    backend.asks.store(0, Ordering::Relaxed);
    let crowd: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    settle().await;
    assert_eq!(backend.asks.load(Ordering::Relaxed), 1);
    guard.release().await.unwrap();
    for acquisition in crowd {
        acquisition.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_cost_the_backend_as_much_as_one() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiters: Vec<_> = (0..1000)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    settle().await;
    backend.asks.store(0, Ordering::Relaxed);
    guard.release().await.unwrap();
    let start = Instant::now();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    let asks = backend.asks.load(Ordering::Relaxed);
    assert!(asks <= 2 * 1000, "{asks} asks for 1000 grants");
    assert!(start.elapsed() < Duration::from_millis(100), "a hand-over waited for a poll");
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_others_wait_does_not_ask() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    wait();
    settle().await;
    let before = backend.asks.load(Ordering::Relaxed);
    for _ in 0..100 {
        wait();
    }
    settle().await;
    assert_eq!(backend.asks.load(Ordering::Relaxed), before);
}

#[tokio::test(start_paused = true)]
async fn a_front_waiter_that_goes_away_passes_its_turn_on() {
    for goes_first in [true, false] {
        let lock = Locker::new(Unordered::default()).lock("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        let wait = || {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await })
        };
        let front = wait();
        settle().await;
        let next = wait();
        settle().await;
        // Cancelled at the very moment of the release: its wake-up must not be lost with it.
        let start = Instant::now();
        if goes_first {
            front.abort();
        }
        guard.release().await.unwrap();
        front.abort();
        drop(next.await.unwrap().unwrap());
        assert!(start.elapsed() < Duration::from_millis(100), "the turn was not passed on");
    }
}

/// Its last ask is still without an answer, and nobody will use that.
#[tokio::test(start_paused = true)]
async fn a_front_waiter_that_has_given_up_holds_up_nobody() {
    for is_dropped in [true, false] {
        let backend = Unordered::default();
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        *backend.health.lock().unwrap() = Health::Stuck;
        let wait = |patience| wait_for(&lock, patience);
        let front = wait(Duration::from_millis(if is_dropped { 10_000 } else { 100 }));
        settle().await;
        *backend.health.lock().unwrap() = Health::Sound;
        let next = wait(Duration::from_secs(1));
        settle().await;
        if is_dropped {
            front.abort();
        }
        assert!(next.await.unwrap().is_ok(), "{is_dropped}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_counts_from_where_the_waiter_before_heard_nothing() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let wait = |patience| wait_for(&lock, patience);
    let front = wait(Duration::from_secs(25));
    settle().await;
    let next = wait(Duration::from_secs(3600));
    settle().await;
    *backend.health.lock().unwrap() = Health::Dead;
    let start = Instant::now();
    assert!(matches!(front.await.unwrap(), Err(Error::TimedOut { .. })));
    assert!(matches!(next.await.unwrap(), Err(Error::Unreachable(_))));
    // The lease is one of 30 seconds.
    assert!(start.elapsed() < Duration::from_secs(32), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_front_waiter_that_is_not_polled_holds_up_nobody() {
    let lock = Locker::new(Unordered::default()).lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    let mut stalled = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_millis(10), &mut stalled).await.is_err());
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    settle().await;
    guard.release().await.unwrap();
    settle().await;
    // The stalled one was granted the lock; once it is gone, so is its hold.
    drop(stalled);
    drop(timeout(Duration::from_secs(5), next).await.unwrap().unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn those_behind_learn_of_a_dead_backend_with_the_front() {
    for health in [Health::Dead, Health::Stuck] {
        let backend = Unordered::default();
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        let _guard = lock.acquire().await.unwrap();
        let waiters: Vec<_> = (0..100)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.acquire().await })
            })
            .collect();
        sleep(Duration::from_secs(100)).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        *backend.health.lock().unwrap() = health;
        let (start, before) = (Instant::now(), backend.asks.load(Ordering::Relaxed));
        for waiter in waiters {
            let outcome = waiter.await.unwrap();
            assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
        }
        // Once a lease, not once a lease for each.
        assert!(start.elapsed() < Duration::from_secs(60), "{health:?}: {:?}", start.elapsed());
        // They take the front's word for it.
        let asks = backend.asks.load(Ordering::Relaxed) - before;
        assert!(health == Health::Dead || asks <= 2, "{asks} asks without an answer");
    }
}

/// The front's ask was under way when the machine was suspended.
#[tokio::test(start_paused = true)]
async fn those_behind_heard_no_silence_while_the_machine_was_suspended() {
    let (backend, clock) = (Unordered::default(), Clock::simulated());
    let locker = Locker::builder(backend.clone()).clock(clock.clone()).build().unwrap();
    let lock = locker.lock("a").unwrap();
    *backend.health.lock().unwrap() = Health::Stuck;
    let wait = |patience| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire_timeout(patience).await?.release().await })
    };
    let front = wait(Duration::from_secs(3605));
    settle().await;
    *backend.health.lock().unwrap() = Health::Sound;
    let behind = [(); 3].map(|()| wait(Duration::from_secs(7200)));
    settle().await;
    clock.suspend(Duration::from_secs(3600));
    assert!(matches!(front.await.unwrap(), Err(Error::TimedOut { .. })));
    for waiter in behind {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn those_behind_keep_their_order_though_the_machine_was_suspended() {
    let (backend, clock) = (Unordered::default(), Clock::simulated());
    let locker = Locker::builder(backend.clone()).ttl(LEASE).clock(clock.clone());
    let lock = locker.build().unwrap().lock("a").unwrap();
    *backend.health.lock().unwrap() = Health::Stuck;
    let front = wait_for(&lock, LEASE * 100);
    settle().await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut behind = JoinSet::new();
    for number in 0..12 {
        let (lock, served) = (lock.clone(), Arc::clone(&served));
        behind.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(number);
            guard.release().await.unwrap();
        });
        settle().await;
    }
    // Each time another of them, by chance, is the first to notice it, and tells the others.
    for _ in 0..8 {
        clock.suspend(LEASE * 2);
        settle().await;
    }
    *backend.health.lock().unwrap() = Health::Sound;
    front.abort();
    behind.join_all().await;
    assert!(served.lock().unwrap().iter().copied().eq(0..12), "{served:?}");
}

/// Without an answer a try does not say that somebody has the lock.
#[tokio::test(start_paused = true)]
async fn those_behind_know_whether_the_lock_is_taken_or_nobody_answers() {
    for health in [Health::Sound, Health::Dead, Health::Stuck] {
        let backend = Unordered::default();
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        let _guard = lock.acquire().await.unwrap();
        *backend.health.lock().unwrap() = health;
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.acquire_timeout(Duration::from_secs(1)).await })
            })
            .collect();
        for waiter in waiters {
            let outcome = waiter.await.unwrap().unwrap_err();
            let Error::TimedOut { source, .. } = &outcome else { panic!("{outcome:?}") };
            assert_eq!(source.is_none(), health == Health::Sound, "{health:?}: {outcome:?}");
        }
    }
}

/// It was taken when the last one was answered, and that was while these waited.
#[tokio::test(start_paused = true)]
async fn an_ask_under_way_does_not_say_that_nobody_answers() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let wait = |seconds| wait_for(&lock, Duration::from_secs(seconds));
    let answered = wait(100);
    settle().await;
    let waiters = [wait(3), wait(2)];
    sleep(Duration::from_secs(1)).await;
    *backend.health.lock().unwrap() = Health::Stuck;
    answered.abort();
    for waiter in waiters {
        let outcome = waiter.await.unwrap().unwrap_err();
        assert!(matches!(outcome, Error::TimedOut { source: None, .. }), "{outcome:?}");
    }
}

/// It came later than the front, whose silence alone the machine stood still for.
#[tokio::test(start_paused = true)]
async fn those_behind_have_not_heard_a_silence_while_the_machine_was_suspended() {
    let (backend, clock) = (Unordered::default(), Clock::simulated());
    let locker = Locker::builder(backend.clone()).ttl(LEASE).clock(clock.clone());
    let lock = locker.build().unwrap().lock("a").unwrap();
    *backend.health.lock().unwrap() = Health::Stuck;
    let _front = wait_for(&lock, LEASE * 10);
    sleep(LEASE / 3).await;
    let mut behind = wait_for(&lock, LEASE * 10);
    settle().await;
    // To the end of the front's patience and beyond, but not of the other's.
    clock.suspend(LEASE * 5 / 6);
    let early = timeout(LEASE * 5 / 6, &mut behind).await;
    assert!(early.is_err(), "there was no silence of the length of a lease: {early:?}");
    assert!(behind.await.unwrap().is_err());
}

/// The answer to the one comes while the other waits for its own.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_late_for_one_is_an_answer_for_the_next() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    *backend.health.lock().unwrap() = Health::Slow;
    let wait = |patience| wait_for(&lock, Duration::from_millis(patience));
    let impatient = wait(500);
    sleep(Duration::from_millis(200)).await;
    let next = wait(1_200);
    let silent = impatient.await.unwrap().unwrap_err();
    assert!(matches!(silent, Error::TimedOut { source: Some(_), .. }), "{silent:?}");
    let outcome = next.await.unwrap().unwrap_err();
    assert!(matches!(outcome, Error::TimedOut { source: None, .. }), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn what_an_owner_missed_before_says_nothing_of_the_front() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let me = Owner::new();
    *backend.health.lock().unwrap() = Health::Dead;
    let briefly = AcquireOptions::new().wait(Wait::AtMost(Duration::from_millis(50)));
    lock.acquire_as(&me, briefly).await.unwrap_err();
    *backend.health.lock().unwrap() = Health::Sound;
    let guard = lock.acquire().await.unwrap();
    let front = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap().release().await }
    });
    settle().await;
    let mine = lock.acquire_as(&me, AcquireOptions::new());
    let mut mine = std::pin::pin!(mine);
    let early = timeout(Duration::from_secs(100), &mut mine).await;
    assert!(early.is_err(), "the front is answered: {early:?}");
    guard.release().await.unwrap();
    front.await.unwrap().unwrap();
    mine.await.unwrap().release().await.unwrap();
}

/// The one before had answers for most of its time.
#[tokio::test(start_paused = true)]
async fn a_blip_at_the_end_of_a_wait_says_little_to_the_next_of_its_owner() {
    // A little longer than a lease, and for much longer.
    for patience in [Duration::from_millis(30_500), Duration::from_secs(100)] {
        let backend = Unordered::default();
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        let me = Owner::new();
        let wait = |wait| {
            let (lock, me) = (lock.clone(), me.clone());
            let options = AcquireOptions::new().wait(wait);
            tokio::spawn(async move { lock.acquire_as(&me, options).await })
        };
        let first = wait(Wait::AtMost(patience));
        settle().await;
        let second = wait(Wait::Forever);
        sleep(patience - Duration::from_secs(5)).await;
        *backend.health.lock().unwrap() = Health::Dead;
        let outcome = first.await.unwrap();
        assert!(matches!(outcome, Err(Error::TimedOut { source: Some(_), .. })), "{outcome:?}");
        *backend.health.lock().unwrap() = Health::Sound;
        sleep(Duration::from_secs(20)).await;
        assert!(!second.is_finished(), "the backend is silent for seconds, not for a lease");
        guard.release().await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn those_behind_get_over_a_blip_with_the_front() {
    let backend = Unordered::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    *backend.health.lock().unwrap() = Health::Dead;
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    sleep(Duration::from_millis(200)).await;
    *backend.health.lock().unwrap() = Health::Sound;
    sleep(Duration::from_secs(100)).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn news_do_not_cut_the_back_off_short() {
    let backend = Unordered { chatty: true, ..Unordered::default() };
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let _guard = lock.acquire().await.unwrap();
    *backend.health.lock().unwrap() = Health::Dead;
    let _waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    backend.asks.store(0, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    let asks = backend.asks.load(Ordering::Relaxed);
    assert!(asks < 200, "{asks} asks of a dead backend in 5 s");
}

/// Each of many processes wants the lock 20 times, and holds it for as long as an ask takes.
async fn asks_of_a_crowd(backend: Unordered, processes: usize) -> usize {
    const TIMES: usize = 20;
    let crowd: Vec<_> = (0..processes)
        .map(|_| {
            let lock = Locker::new(backend.clone()).lock("a").unwrap();
            tokio::spawn(async move {
                for _ in 0..TIMES {
                    let guard = lock.acquire().await.unwrap();
                    sleep(Duration::from_millis(1)).await;
                    guard.release().await.unwrap();
                    sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    for one in crowd {
        one.await.unwrap();
    }
    backend.asks.load(Ordering::Relaxed) / (processes * TIMES)
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_is_told_together_does_not_ask_together() {
    let public = Unordered { public: true, ..Unordered::default() };
    let asks = asks_of_a_crowd(public, 64).await;
    assert!(asks <= 12, "{asks} asks for each grant to one of 64");
    // As many as there are, if nobody leaves others the first try.
    let asks = asks_of_a_crowd(Unordered::default(), 64).await;
    assert!(asks >= 24, "{asks} asks for each grant");
}

/// How often one asks that waits for 10 s, and how long after the release it has the lock.
async fn patience(tells: Tells) -> (usize, Duration) {
    let backend = Unordered { tells, ..Unordered::default() };
    let guard = Locker::new(backend.clone()).lock("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        async move { lock.acquire().await }
    });
    sleep(Duration::from_secs(10)).await;
    let asks = backend.asks.load(Ordering::Relaxed);
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    (asks, start.elapsed())
}

/// From 5 ms on, twice as long each time.
#[tokio::test(start_paused = true)]
async fn a_backend_that_fails_is_left_alone_for_longer_and_longer() {
    let backend = Unordered::default();
    *backend.health.lock().unwrap() = Health::Dead;
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let mut asks = Vec::new();
    for patience in [50, 10_000].map(Duration::from_millis) {
        backend.asks.store(0, Ordering::Relaxed);
        assert!(lock.acquire_timeout(patience).await.is_err());
        asks.push(backend.asks.load(Ordering::Relaxed));
    }
    assert!((4..=6).contains(&asks[0]), "{asks:?} asks in 50 ms and in 10 s");
    assert!((100..=130).contains(&asks[1]), "{asks:?} asks in 50 ms and in 10 s");
}

#[tokio::test(start_paused = true)]
async fn who_can_be_told_of_nothing_polls() {
    let (asks, took) = patience(Tells::Nobody).await;
    assert!((100..1_000).contains(&asks), "{asks} asks in 10 s");
    assert!(took <= Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_asks_seldom_though_others_are_not() {
    let (asks, took) = patience(Tells::Some).await;
    assert!((8..20).contains(&asks), "{asks} asks in 10 s");
    assert!(took <= Duration::from_millis(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_news_of_a_release_wait_for_no_poll() {
    let backend = Unordered { public: true, ..Unordered::default() };
    let guard = Locker::new(backend.clone()).lock("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        async move { lock.acquire().await }
    });
    settle().await;
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO, "one who is alone with the holder was patient");
}
