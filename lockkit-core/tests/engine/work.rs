//! Work that is done under a lock.

use std::rc::Rc;

use lockkit_core::{
    AcquireOptions, DistributedLock, Error, LockExt as _, Owner, ReentrantLock, Wait,
};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::{TTL, set_up, set_up_locker, settle};

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

/// No loss: nobody else has the lock before it is free.
#[tokio::test(start_paused = true)]
async fn a_shutdown_cancels_work_and_is_no_loss() {
    let (backend, locker) = set_up_locker();
    let lock = locker.lock("a").unwrap();
    let running = tokio::spawn(async move { lock.run(|_| std::future::pending::<()>()).await });
    settle().await;
    locker.shutdown().await;
    let outcome = running.await.unwrap();
    assert!(matches!(outcome, Err(Error::ShutDown { .. })), "{outcome:?}");
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn work_may_stay_on_its_thread() {
    let (_, lock) = set_up();
    let count = Rc::new(1);
    let done = lock.run(|_| {
        let count = Rc::clone(&count);
        async move {
            yield_now().await;
            Rc::strong_count(&count)
        }
    });
    assert_eq!(done.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn work_of_one_owner_may_be_nested() {
    let (backend, lock) = set_up();
    let any: &dyn ReentrantLock = &lock;
    let (me, now) = (Owner::new(), AcquireOptions::new().wait(Wait::No));
    let inner = async |_| lock.depth(&me);
    let outer = async |_| {
        let depth = any.run_as(&me, now, inner).await;
        let again = lock.run_as(&me, now, inner).await;
        let taken = lock.try_acquire().await.unwrap().is_none();
        (depth.unwrap(), again.unwrap(), taken)
    };
    assert_eq!(lock.run_as(&me, now, outer).await.unwrap(), (2, 2, true));
    assert!(backend.is_idle());
}

#[tokio::test(start_paused = true)]
async fn nested_work_is_cancelled_along_with_the_hold() {
    let (backend, lock) = set_up();
    let me = Owner::new();
    let start = Instant::now();
    let outer = async |_| {
        let inner = lock.run_as(&me, AcquireOptions::new(), async |_| {
            backend.revoke(lock.name());
            std::future::pending::<()>().await
        });
        inner.await
    };
    let outcome = lock.run_as(&me, AcquireOptions::new(), outer).await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(start.elapsed() < TTL);
}
