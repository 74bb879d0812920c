use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lockkit::{AcquireOptions, DistributedLock, LockGuard, Locker, Result, Wait};
use tokio::time::{Instant, sleep, timeout};

use crate::NAMES;
use crate::witness::Witness;

/// Takes one lock after the other, in every way that there is.
pub(crate) async fn work(
    locker: Locker,
    witness: Arc<Witness>,
    process: usize,
    ttl: Duration,
    mut dice: Rng,
    goes_on: impl Fn() -> bool,
) {
    while goes_on() {
        let lock = locker.lock(NAMES[dice.usize(..NAMES.len())]).unwrap();
        let in_order = dice.bool().then(|| lock.clone().fair().ok()).flatten();
        let lock: Arc<dyn DistributedLock> = match in_order {
            Some(lock) => Arc::new(lock),
            None => Arc::new(lock),
        };
        let released = witness.released(lock.name().as_str());
        match acquire(&*lock, ttl, &mut dice).await {
            Some(Ok(guard)) => {
                witness.follows(&guard, released);
                let begun = Instant::now();
                let long = how_long(ttl, &mut dice);
                while witness.sees(&guard, process) && begun.elapsed() < long && goes_on() {
                    sleep(millis(&mut dice, 20)).await;
                }
                let_go(guard, &witness, &mut dice).await;
            }
            Some(Err(error)) => {
                witness.hears(&error);
                // A locker that was shut down says so at once.
                sleep(millis(&mut dice, 100)).await;
            }
            None => (),
        }
    }
}

/// `None` if it was given up.
async fn acquire(
    lock: &dyn DistributedLock,
    ttl: Duration,
    dice: &mut Rng,
) -> Option<Result<LockGuard>> {
    let patience = ttl.mul_f64(2.0 * dice.f64()).max(Duration::from_millis(1));
    let waiting = |wait| lock.acquire_with(AcquireOptions::new().wait(wait));
    match dice.u32(..8) {
        0 => Some(waiting(Wait::No).await),
        1..=2 => Some(waiting(Wait::AtMost(patience)).await),
        3..=4 => timeout(patience / 8, waiting(Wait::Forever)).await.ok(),
        5 => Some(left_alone(waiting(Wait::Forever), patience / 4).await),
        _ => Some(waiting(Wait::Forever).await),
    }
}

/// Begins it, and comes back to it later.
async fn left_alone<T>(begun: impl Future<Output = T>, pause: Duration) -> T {
    let mut begun: Pin<&mut _> = pin!(begun);
    match poll_fn(|context| Poll::Ready(begun.as_mut().poll(context))).await {
        Poll::Ready(done) => done,
        Poll::Pending => {
            sleep(pause).await;
            begun.await
        }
    }
}

/// For a moment, or for so long that an outage in between outlasts the lease.
fn how_long(ttl: Duration, dice: &mut Rng) -> Duration {
    match dice.bool() {
        true => millis(dice, 100),
        false => ttl.mul_f64(2.5 * dice.f64()),
    }
}

async fn let_go(guard: LockGuard, witness: &Witness, dice: &mut Rng) {
    if dice.u32(..4) == 0 {
        return drop(guard);
    }
    let (name, token) = (guard.name().clone(), guard.fencing_token());
    match guard.release().await {
        Ok(()) => witness.sees_release(name.as_str(), token),
        Err(error) => witness.hears(&error),
    }
}

fn millis(dice: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(dice.u64(..most))
}
