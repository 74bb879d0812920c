use lockkit_core::memory::MemoryDriver;
use lockkit_core::{AcquireOptions, FairLock, Lease, LeasedLock, Lock, LockGuard, Owner, Result};

use crate::{AtOnce, Stage};

/// Something that the engine does, to be done so many times.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Work {
    /// What is done, in a word.
    pub name: &'static str,
    /// What is done each time.
    pub what: &'static str,
    perform: fn(&Stage, u64) -> Result<()>,
}

impl Work {
    /// Does it so many times.
    ///
    /// # Panics
    ///
    /// If a lock fails, which the driver gives no cause for.
    pub fn perform(&self, stage: &Stage, times: u64) {
        (self.perform)(stage, times).expect("the driver never fails");
    }
}

/// All that is measured.
pub const WORKS: &[Work] = &[
    Work { name: "plain", what: "an uncontended acquire and release", perform: plain },
    Work { name: "fair", what: "the same of a fair lock", perform: fair },
    Work { name: "leased", what: "the same with a guard that can be extended", perform: leased },
    Work { name: "dropped", what: "an acquire and a guard that is dropped", perform: dropped },
    Work { name: "reentered", what: "a re-entry and its release, while held", perform: reentered },
    Work {
        name: "turn",
        what: "a turn of a thousand waiters: asking, waiting, getting the lock and releasing",
        perform: turn,
    },
    Work {
        name: "handed",
        what: "the same where the driver has the queue: the memory driver, which is counted with it",
        perform: handed,
    },
    Work { name: "renewal", what: "a renewal of one of a thousand holds", perform: renewal },
];

fn plain(stage: &Stage, times: u64) -> Result<()> {
    let lock = stage.lock(AtOnce::free());
    stage.perform(async {
        for round in 1..=times {
            lock.acquire().await?.release().await?;
            stage.breathe(round).await;
        }
        Ok(())
    })
}

fn fair(stage: &Stage, times: u64) -> Result<()> {
    let lock = stage.lock(AtOnce::free()).fair()?;
    let lock: &dyn FairLock = &lock;
    stage.perform(async {
        for round in 1..=times {
            lock.acquire_with(AcquireOptions::new()).await?.release().await?;
            stage.breathe(round).await;
        }
        Ok(())
    })
}

fn leased(stage: &Stage, times: u64) -> Result<()> {
    let lock = stage.lock(AtOnce::free()).leased(Lease::new(Stage::TTL))?;
    let lock: &dyn LeasedLock = &lock;
    stage.perform(async {
        for round in 1..=times {
            lock.acquire_leased(AcquireOptions::new()).await?.release().await?;
            stage.breathe(round).await;
        }
        Ok(())
    })
}

fn dropped(stage: &Stage, times: u64) -> Result<()> {
    let lock = stage.lock(AtOnce::free());
    stage.perform(async {
        for round in 1..=times {
            drop(lock.acquire().await?);
            stage.breathe(round).await;
        }
        Ok(())
    })
}

fn reentered(stage: &Stage, times: u64) -> Result<()> {
    let (lock, owner) = (stage.lock(AtOnce::free()), Owner::new());
    stage.perform(async {
        let outer = lock.acquire_as(&owner, AcquireOptions::new()).await?;
        for _ in 0..times {
            lock.acquire_as(&owner, AcquireOptions::new()).await?.release().await?;
        }
        outer.release().await
    })
}

fn turn(stage: &Stage, times: u64) -> Result<()> {
    crowd(stage, &stage.lock(AtOnce::single()), times)
}

fn handed(stage: &Stage, times: u64) -> Result<()> {
    crowd(stage, &stage.lock(MemoryDriver::new()), times)
}

/// Lets a thousand wait at a time, until all have had the lock.
fn crowd(stage: &Stage, lock: &Lock, times: u64) -> Result<()> {
    const CROWD: u64 = 1_000;
    let mut left = times;
    while left > 0 {
        let crowd = left.min(CROWD);
        left -= crowd;
        stage.perform(async {
            let holder = lock.acquire().await?;
            let waiter = async |lock: Lock| lock.acquire().await?.release().await;
            let waiters: Vec<_> = (0..crowd).map(|_| tokio::spawn(waiter(lock.clone()))).collect();
            // All ask, and find the lock taken: the runtime does dozens of steps in between.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            holder.release().await?;
            for waiter in waiters {
                waiter.await.expect("the task does not panic")?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn renewal(stage: &Stage, times: u64) -> Result<()> {
    const HOLDS: u64 = 1_000;
    let driver = AtOnce::free();
    let locker = stage.locker(driver.clone());
    stage.perform(async {
        let mut holds: Vec<LockGuard> = Vec::new();
        for number in 0..HOLDS {
            holds.push(locker.lock(&format!("orders/{number}"))?.acquire().await?);
        }
        while driver.renewals() < times {
            tokio::time::advance(Stage::TTL / 1_000).await;
        }
        Ok(())
    })
}
