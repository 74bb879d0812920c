//! The engine over the memory driver with planned faults, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod doubts;
mod dropping;
mod holding;
mod leases;
mod odd;
mod owners;
mod promises;
mod shutdown;
mod waiting;
mod waking;
mod work;

use std::time::Duration;

use lockkit_core::driver::Clock;
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Lock, Locker};

const TTL: Duration = Duration::from_secs(10);

fn set_up() -> (MemoryDriver, Lock) {
    let (backend, locker) = set_up_locker();
    (backend, locker.lock("a").unwrap())
}

fn set_up_locker() -> (MemoryDriver, Locker) {
    let backend = MemoryDriver::new();
    // One of its own: when a locker ends, that wakes whoever sleeps by the same clock, from another
    // thread, and virtual time goes on before they have come to run.
    let builder = Locker::builder(backend.clone()).ttl(TTL).clock(Clock::simulated());
    (backend, builder.build().unwrap())
}

/// Lets every task run until all wait for time to pass.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
