//! A future that nobody polls, on a backend with one connection.

#![cfg(feature = "sqlite")]

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_is_left_alone_keeps_nobody_from_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let locker = lockkit::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let lock = locker.lock("left alone").unwrap();
    let mut begun = pin!(lock.acquire());
    assert!(begun.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let other = locker.lock("other").unwrap();
    let guard = tokio::spawn(async move { other.try_acquire().await }).await.unwrap();
    assert!(guard.unwrap().is_some());
    assert!(begun.await.unwrap().is_held());
}
