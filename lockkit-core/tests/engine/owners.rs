//! Owners, who acquire again what they hold.

use lockkit_core::{AcquireOptions, Error, Owner, ReentrantLock, Wait};

use crate::{set_up, settle};

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
