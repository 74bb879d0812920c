//! What this process uses of the machine.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long this process was on a CPU so far, all threads together.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// How many bytes of memory this process has of its own: neither its code, which is read from a
/// file when it first runs, nor other files that are mapped. `None` where the system does not tell:
/// only Linux does.
pub fn memory() -> Option<u64> {
    const KIB: u64 = 1024;
    // What `statm` says may lag behind by some hundred KiB.
    let text = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * KIB)
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
