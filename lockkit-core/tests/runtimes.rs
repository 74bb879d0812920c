//! Locks and the runtimes around them: the locker's own, others, and none.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Claim, Driver, DriverError, ErrorKind, Release, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{
    AcquireOptions, Capabilities, Error, Liveness, Lock, Locker, Operation, Owner, Wait,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(10);

/// A locker whose keepers run on `runtime`.
fn locker_on(runtime: &Runtime) -> Locker {
    let _inside = runtime.enter();
    Locker::builder(MemoryDriver::new()).ttl(TTL).build().unwrap()
}

fn lock_on(runtime: &Runtime) -> Lock {
    locker_on(runtime).lock("a").unwrap()
}

fn with_timers() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

/// A runtime that has no timers of its own.
fn elsewhere() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

#[test]
fn a_hold_ends_with_the_runtime_of_its_keeper() {
    for age in [Duration::ZERO, TTL / 2] {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let lock = lock_on(&runtime);
        let guard = runtime.block_on(async {
            let guard = lock.acquire().await.unwrap();
            sleep(age).await;
            guard
        });
        assert!(guard.is_held());
        drop(runtime);
        assert!(!guard.is_held(), "{age:?} old");
    }
}

#[test]
fn a_locker_made_outside_of_any_runtime_keeps_to_the_first_that_uses_it() {
    let locker = Locker::builder(MemoryDriver::new()).ttl(TTL).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| locker.lock(name).unwrap());
    let outcome = pin!(a.acquire()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(outcome, Poll::Ready(Err(Error::Config { .. }))), "{outcome:?}");

    let [first, second] = [with_timers(), with_timers()];
    let guards = [first.block_on(a.acquire()).unwrap(), second.block_on(b.acquire()).unwrap()];
    drop(second);
    assert!(guards.iter().all(|guard| guard.is_held()));
    drop(first);
    assert!(!guards.iter().any(|guard| guard.is_held()));
}

/// Outside of its `block_on` a runtime of the current thread renews nothing.
#[test]
fn a_hold_on_a_runtime_that_does_not_run_is_lost() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let locker = {
        let _inside = runtime.enter();
        Locker::builder(MemoryDriver::new()).ttl(Duration::from_millis(50)).build().unwrap()
    };
    let guard = runtime.block_on(locker.lock("a").unwrap().acquire()).unwrap();
    let start = std::time::Instant::now();
    while guard.is_held() && start.elapsed() < TTL {
        std::thread::yield_now();
    }
    assert!(!guard.is_held());
    let outcome = runtime.block_on(guard.release());
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
}

#[test]
fn locks_work_from_any_executor() {
    let runtime = with_timers();
    let lock = lock_on(&runtime);
    let other = elsewhere();
    let guard = other.block_on(lock.acquire()).unwrap();
    drop(other);
    assert!(guard.is_held());
    runtime.block_on(guard.release()).unwrap();
}

#[test]
fn a_locker_is_shut_down_from_any_executor() {
    let runtime = with_timers();
    let locker = locker_on(&runtime);
    let other = elsewhere();
    let guard = other.block_on(locker.lock("a").unwrap().acquire()).unwrap();
    other.block_on(locker.shutdown());
    assert!(!guard.is_held());
}

#[test]
fn a_locker_without_its_runtime_is_shut_down() {
    let runtime = with_timers();
    let locker = locker_on(&runtime);
    drop(runtime);
    let outcome = elsewhere().block_on(locker.lock("a").unwrap().acquire());
    assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{outcome:?}");
    elsewhere().block_on(locker.shutdown());
}

/// Which the runtime of whoever shuts it down has not.
#[test]
fn a_driver_whose_runtime_has_ended_is_closed_with_timers() {
    let runtime = with_timers();
    let closed = Arc::new(AtomicBool::new(false));
    let driver = Closing(MemoryDriver::new(), Arc::clone(&closed));
    let locker = runtime.block_on(async { Locker::new(driver) });
    drop(runtime);
    elsewhere().block_on(locker.shutdown());
    assert!(closed.load(Relaxed));
}

/// Takes some time to close.
#[derive(Debug)]
struct Closing(MemoryDriver, Arc<AtomicBool>);

#[async_trait]
impl Driver for Closing {
    fn id(&self) -> &'static str {
        self.0.id()
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

    async fn close(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.1.store(true, Relaxed);
    }
}

/// An acquisition of the same owner that nobody polls is in the way, and then the timers end.
#[test]
fn who_waits_for_its_own_acquisition_is_told_of_the_end_of_the_runtime() {
    for wait in [Wait::AtMost(TTL), Wait::Forever] {
        let runtime = with_timers();
        let lock = lock_on(&runtime);
        let _guard = runtime.block_on(lock.acquire()).unwrap();
        let other = elsewhere();
        let (me, options) = (Owner::new(), AcquireOptions::new().wait(wait));
        let outcome = other.block_on(async {
            let mut first = pin!(lock.acquire_as(&me, options));
            let mut second = pin!(lock.acquire_as(&me, options));
            tokio::select! {
                biased;
                _ = &mut first => panic!("it is taken"),
                _ = &mut second => panic!("the first is under way"),
                () = async {} => (),
            }
            let ending = std::thread::spawn(move || runtime.shutdown_background());
            let outcome = second.await;
            ending.join().unwrap();
            outcome
        });
        assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{wait:?}: {outcome:?}");
    }
}

#[test]
fn the_end_of_a_runtime_is_told_elsewhere() {
    for _ in 0..20 {
        let runtime = with_timers();
        let guard = runtime.block_on(lock_on(&runtime).acquire()).unwrap();
        let (listening, listens) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            elsewhere().block_on(async {
                let mut lost = pin!(guard.lost());
                let first =
                    tokio::select! { biased; () = &mut lost => true, () = async {} => false };
                listening.send(()).unwrap();
                if !first {
                    lost.await;
                }
                assert!(!guard.is_held(), "lost is what it says it is");
            });
        });
        listens.recv().unwrap();
        drop(runtime);
        waiting.join().unwrap();
    }
}

/// Shuts its locker down, in another thread, just when a request of one kind is about to leave.
#[derive(Debug)]
struct Overtaken {
    backend: MemoryDriver,
    by: Operation,
    locker: OnceLock<Locker>,
    closing: Sender<()>,
    closed: Mutex<Receiver<()>>,
}

impl Overtaken {
    fn leaves(&self, operation: Operation) {
        if operation == self.by
            && let Some(locker) = self.locker.get().cloned()
        {
            std::thread::spawn(move || elsewhere().block_on(locker.shutdown()));
            // For long enough if nobody waits for the request.
            let closed = self.closed.lock().unwrap().recv_timeout(Duration::from_millis(200));
            assert!(closed.is_err(), "the driver was closed before the request to {operation}");
        }
    }
}

#[async_trait]
impl Driver for Overtaken {
    fn id(&self) -> &'static str {
        "overtaken"
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.leaves(Operation::Acquire);
        self.backend.try_acquire(claim).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.backend.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.leaves(Operation::Release);
        self.backend.release(claim).await
    }

    async fn close(&self) {
        _ = self.closing.send(());
    }
}

#[test]
fn shutting_down_waits_for_requests_that_are_about_to_leave() {
    for by in [Operation::Acquire, Operation::Release] {
        let (closing, closed) = channel();
        let (backend, closed) = (MemoryDriver::new(), Mutex::new(closed));
        let driver = Overtaken { backend, by, locker: OnceLock::new(), closing, closed };
        let (driver, runtime) = (Arc::new(driver), with_timers());
        let locker = {
            let _inside = runtime.enter();
            Locker::from_arc(driver.clone())
        };
        driver.locker.set(locker.clone()).unwrap();
        let acquired = elsewhere().block_on(locker.lock("a").unwrap().acquire());
        match by {
            // Granted before the shutdown began, or not at all.
            Operation::Acquire => drop(acquired),
            _ => elsewhere().block_on(acquired.unwrap().release()).unwrap(),
        }
        driver.closed.lock().unwrap().recv().unwrap();
        assert!(driver.backend.is_idle());
    }
}

#[test]
fn a_shutdown_closes_the_driver_once() {
    for runtime_ends in [false, true] {
        let (closing, closed) = channel();
        let (backend, by) = (MemoryDriver::new(), Operation::Acquire);
        let (locker, closed) = (OnceLock::new(), Mutex::new(closed));
        let driver = Arc::new(Overtaken { backend, by, locker, closing, closed });
        let mut runtime = Some(with_timers());
        let locker = {
            let _inside = runtime.as_ref().unwrap().enter();
            Locker::from_arc(driver.clone())
        };
        drop(runtime.take_if(|_| runtime_ends));
        elsewhere().block_on(locker.shutdown());
        let closed = driver.closed.lock().unwrap().try_iter().count();
        assert_eq!(closed, 1, "its runtime ended before: {runtime_ends}");
    }
}

/// Lets locks end with a session, is out of reach from the first grant on, and does not come to
/// the end of closing.
#[derive(Debug, Default)]
struct OutOfReach {
    backend: MemoryDriver,
}

#[async_trait]
impl Driver for OutOfReach {
    fn id(&self) -> &'static str {
        "out-of-reach"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Liveness::Session)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.backend.try_acquire(claim).await
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        Err(DriverError::new(ErrorKind::Unreachable, "out of reach"))
    }

    async fn release(&self, _: &Claim) -> Result<Release, DriverError> {
        Err(DriverError::new(ErrorKind::Unreachable, "out of reach"))
    }

    async fn close(&self) {
        std::future::pending().await
    }
}

/// A session does not run out, so there it takes an answer.
#[tokio::test(start_paused = true)]
async fn what_a_session_has_is_released_for_as_long_as_it_takes() {
    let locker = Locker::builder(OutOfReach::default()).ttl(TTL).build().unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    drop(locker.lock("a").unwrap().acquire().await.unwrap());
    sleep(TTL * 100).await;
    assert!(tasks() > before, "it was given up");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_close_holds_no_shutdown_up() {
    let locker = Locker::builder(OutOfReach::default()).ttl(TTL).build().unwrap();
    let start = Instant::now();
    locker.shutdown().await;
    assert!(start.elapsed() <= Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_while_the_driver_closes_leaves_no_task() {
    let locker = Locker::builder(OutOfReach::default()).ttl(TTL).build().unwrap();
    drop(locker.lock("a").unwrap().acquire().await.unwrap());
    // By then the locker has given up what it cannot release.
    assert!(timeout(TTL + Duration::from_secs(6), locker.shutdown()).await.is_err());
    drop(locker);
    sleep(TTL).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

/// Its first ask takes until its locker's runtime has ended, or until that has to wait for it, and
/// looks at a timer then.
#[derive(Debug)]
struct Outlasting {
    runtime: Mutex<Option<Runtime>>,
}

#[async_trait]
impl Driver for Outlasting {
    fn id(&self) -> &'static str {
        "outlasting"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Liveness::Lease)
    }

    async fn try_acquire(&self, _: &Claim) -> Result<Attempt, DriverError> {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            let (ending, ended) = channel();
            std::thread::spawn(move || {
                drop(runtime);
                _ = ending.send(());
            });
            _ = ended.recv_timeout(Duration::from_millis(200));
        }
        sleep(TTL).await;
        Err(DriverError::new(ErrorKind::Unreachable, "out of reach"))
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        Ok(Renewal::Lost)
    }

    async fn release(&self, _: &Claim) -> Result<Release, DriverError> {
        Ok(Release::NotHeld)
    }
}

#[test]
fn a_runtime_does_not_end_under_a_request_that_is_being_driven() {
    let runtime = with_timers();
    let driver = Arc::new(Outlasting { runtime: Mutex::default() });
    let locker = {
        let _inside = runtime.enter();
        Locker::from_arc(driver.clone())
    };
    *driver.runtime.lock().unwrap() = Some(runtime);
    let outcome = elsewhere().block_on(locker.lock("a").unwrap().acquire());
    assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{outcome:?}");
}
