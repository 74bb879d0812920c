use std::time::Duration;

use lockkit_core::driver::{Clock, Driver};
use lockkit_core::{Lock, Locker};
use tokio::runtime::{Builder, Runtime};

/// Where work is done: a runtime of one thread.
#[derive(Debug)]
pub struct Stage {
    runtime: Runtime,
    is_virtual: bool,
}

impl Stage {
    /// How long a lease is.
    pub const TTL: Duration = Duration::from_secs(30);

    /// In the machine's time.
    ///
    /// # Panics
    ///
    /// If the system has no resources for a runtime.
    pub fn real() -> Self {
        Self::new(false)
    }

    /// In a time that goes on only when it is told to, with jitter that is the same in every run.
    ///
    /// # Panics
    ///
    /// As [`real`](Self::real).
    pub fn virtual_time() -> Self {
        fastrand::seed(7);
        Self::new(true)
    }

    fn new(is_virtual: bool) -> Self {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(is_virtual).build();
        Self { runtime: runtime.expect("the system has resources"), is_virtual }
    }

    /// Does `work`.
    pub fn perform<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// A locker on this stage.
    pub fn locker(&self, driver: impl Driver) -> Locker {
        let _inside = self.runtime.enter();
        // The system's clock is looked at by a thread once a second, whenever that is.
        let clock = if self.is_virtual { Clock::simulated() } else { Clock::system() };
        let builder = Locker::builder(driver).ttl(Self::TTL).clock(clock);
        builder.build().expect("the lease is one that every driver keeps")
    }

    /// A lock on this stage.
    pub fn lock(&self, driver: impl Driver) -> Lock {
        self.locker(driver).lock("orders/42").expect("the name is valid")
    }

    /// Lets the tasks of the engine do what is due: every so often, as a request would.
    pub async fn breathe(&self, round: u64) {
        if !round.is_multiple_of(64) {
            return;
        }
        if self.is_virtual {
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        tokio::task::yield_now().await;
    }
}
