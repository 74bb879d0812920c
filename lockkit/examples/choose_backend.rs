//! The same program on any backend: the URL says which, at run time.
//!
//! `cargo run -p lockkit --example choose_backend -F redis -- redis://localhost`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;

use lockkit::{AcquireOptions, BACKENDS, DistributedLock, FairLock, LockGuard, Wait};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for backend in BACKENDS {
        let state = if backend.capabilities.is_some() { "" } else { " (its feature is off)" };
        println!("known: {}:{state}", backend.scheme);
    }
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = lockkit::connect(&url).await?;
    let promised = locker.capabilities();
    println!("{} holds end with the {}", locker.driver().id(), promised.liveness);

    // A backend that serves waiters in no order can still lock: the type says which kind it is.
    let lock = locker.lock("report")?;
    let guard = match lock.clone().fair() {
        Ok(fair) => in_order(Arc::new(fair)).await?,
        Err(error) => {
            println!("{error}");
            in_any_order(Arc::new(lock)).await?
        }
    };
    println!("held by {} with token {:?}", guard.owner(), guard.fencing_token());
    guard.release().await?;
    locker.shutdown().await;
    Ok(())
}

/// Can be called only with a lock that serves first come, first served.
async fn in_order(lock: Arc<dyn FairLock>) -> lockkit::Result<LockGuard> {
    in_any_order(lock).await
}

async fn in_any_order(lock: Arc<dyn DistributedLock>) -> lockkit::Result<LockGuard> {
    lock.acquire_with(AcquireOptions::new().wait(Wait::Forever)).await
}
