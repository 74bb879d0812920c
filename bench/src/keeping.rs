use std::time::Duration;

use lockkit::LockGuard;
use tokio::time::{Instant, sleep};

/// How often all holds are looked at in a lease.
const LOOKS: u32 = 60;

/// What the engine takes off a lease, plus the delay of a late look: a hundredth of the lease and
/// some milliseconds.
const MARGIN: (u32, Duration) = (100, Duration::from_millis(5));

/// How well holds were kept for a while.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// The least that any hold had left of its lease at any look.
    pub least_left: Duration,
    /// How many renewals were not answered within two thirds of a lease.
    pub late: u64,
    /// How many holds were lost.
    pub lost: u64,
}

impl Keeping {
    /// Looks at holds that are kept, all with leases of length `lease`, for as long as `long`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn watch(guards: &[LockGuard], lease: Duration, long: Duration) -> Self {
        let (hundredth, late) = MARGIN;
        let enough = (lease / 3).saturating_sub(lease / hundredth + late);
        let mut seen = Self { least_left: lease, late: 0, lost: 0 };
        let mut are_late = vec![false; guards.len()];
        let begun = Instant::now();
        while begun.elapsed() < long {
            sleep((lease.min(long) / LOOKS).min(long.saturating_sub(begun.elapsed()))).await;
            for (guard, was_late) in guards.iter().zip(&mut are_late) {
                // Without an end there is no lateness.
                let Some(left) = guard.valid_for() else { continue };
                seen.least_left = seen.least_left.min(left);
                let is_late = left < enough;
                seen.late += u64::from(is_late && !*was_late);
                *was_late = is_late;
            }
        }
        seen.lost = guards.iter().filter(|guard| !guard.is_held()).map(|_| 1).sum();
        seen
    }
}

#[cfg(test)]
mod tests {
    use lockkit::{Lease, Locker, Renew, memory::MemoryDriver};

    use super::*;

    const LEASE: Duration = Duration::from_millis(300);

    async fn watch(lease: Lease) -> Keeping {
        let locker = Locker::builder(MemoryDriver::new()).lease(lease).build().unwrap();
        let guard = locker.lock("kept").unwrap().acquire().await.unwrap();
        Keeping::watch(&[guard], LEASE, LEASE * 2).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_renewed_at_a_third_is_not_late() {
        let Keeping { least_left, late, lost } = watch(Lease::new(LEASE)).await;
        assert_eq!((late, lost), (0, 0));
        assert!(least_left > LEASE / 3 && least_left < LEASE, "{least_left:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_renewed_is_late_once_and_then_lost() {
        let Keeping { least_left, late, lost } = watch(Lease::new(LEASE).renew(Renew::Never)).await;
        assert_eq!((least_left, late, lost), (Duration::ZERO, 1, 1));
    }
}
