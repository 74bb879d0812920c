//! What this process takes of the machine.

use std::fs;
use std::time::Duration;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// How long this process was on a CPU so far, all threads together.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// How many bytes of memory this process has. `None` where the system does not tell: only Linux
/// does.
pub fn memory() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * u64::try_from(page_size()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_taken_is_counted() {
        const MUCH: usize = 64 << 20;
        let Some(before) = memory() else {
            assert_ne!(std::env::consts::OS, "linux", "Linux tells");
            return;
        };
        let taken = vec![1_u8; MUCH];
        let after = memory().unwrap();
        assert!(after > before + (MUCH as u64) / 2, "{before} bytes, then {after}");
        drop(taken);
    }
}
