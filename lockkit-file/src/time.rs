//! The two clocks, both in microseconds: one for tokens, one for how long a lock is held.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time of day, which only lets tokens rise past those of a file that was lost.
pub(crate) fn of_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The time on the host's boot-time clock.
pub(crate) fn since_boot() -> u64 {
    // Apple's CLOCK_MONOTONIC goes on in suspend.
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // It counts from the boot, so it is not negative.
    Duration::try_from(clock_gettime(CLOCK)).map_or(0, micros)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
