//! Locks and the runtimes around them: the locker's own, others, and none.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::time::Duration;

use lockkit_core::memory::MemoryDriver;
use lockkit_core::{AcquireOptions, Error, Lock, Locker, Owner, Wait};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

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

/// An acquisition of the same owner that nobody polls is in the way, and then the timers end.
#[test]
fn who_waits_for_its_own_acquisition_is_told_of_the_end_of_the_runtime() {
    let runtime = with_timers();
    let lock = lock_on(&runtime);
    let _guard = runtime.block_on(lock.acquire()).unwrap();
    let other = elsewhere();
    let me = Owner::new();
    let patience = AcquireOptions::new().wait(Wait::AtMost(TTL));
    let outcome = other.block_on(async {
        let mut first = std::pin::pin!(lock.acquire_as(&me, patience));
        let mut second = std::pin::pin!(lock.acquire_as(&me, patience));
        tokio::select! {
            biased;
            _ = &mut first => panic!("it is taken"),
            _ = &mut second => panic!("the first is under way"),
            () = async {} => (),
        }
        runtime.shutdown_background();
        second.await
    });
    assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{outcome:?}");
}

#[test]
fn the_end_of_a_runtime_is_told_elsewhere() {
    for _ in 0..20 {
        let runtime = with_timers();
        let guard = runtime.block_on(lock_on(&runtime).acquire()).unwrap();
        let (listening, listens) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            elsewhere().block_on(async {
                let mut lost = std::pin::pin!(guard.lost());
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
