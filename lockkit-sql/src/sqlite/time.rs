//! The clock that leases are counted on.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::micros::micros;

/// The boot-time clock of this host, as this process sees it.
#[derive(Debug)]
pub(super) struct HostClock {
    id: String,
}

impl HostClock {
    /// Finds out which clock it is.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn new() -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;

        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // A time namespace shifts the clock for the processes in it. Kernels before 5.6 have none.
        let namespace = match std::fs::metadata("/proc/self/ns/time") {
            Ok(namespace) => namespace.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(Self { id: format!("{}:{namespace}", boot.trim()) })
    }

    /// Finds out which clock it is: this system has no time namespaces, and tells its boots apart
    /// only through calls that need unsafe code. A row from before a boot is that of a dead
    /// process; it is freed when its time comes, or when it has been watched for its TTL.
    #[cfg(target_vendor = "apple")]
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { id: "this host".into() })
    }

    /// Tells apart clocks that do not count from the same moment.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// What time it is, in microseconds. The clock goes on during suspend and is never stepped.
    pub(super) fn now(&self) -> i64 {
        use rustix::time::{ClockId, clock_gettime};
        // Apple's CLOCK_MONOTONIC goes on during suspend.
        #[cfg(target_vendor = "apple")]
        const CLOCK: ClockId = ClockId::Monotonic;
        #[cfg(not(target_vendor = "apple"))]
        const CLOCK: ClockId = ClockId::Boottime;
        // It counts from the boot, so it is not negative.
        Duration::try_from(clock_gettime(CLOCK)).map_or(0, micros)
    }
}

/// The time of day in microseconds, for fencing tokens only: it makes them rise even when the
/// database was deleted. It is never compared with the time of another process, and no lease rests
/// on it.
pub(super) fn wall_clock() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

#[cfg(test)]
mod tests {
    use super::HostClock;

    #[test]
    fn the_clock_names_boot_and_time_namespace() {
        let clock = HostClock::new().unwrap();
        assert_eq!(clock.id(), HostClock::new().unwrap().id());
        #[cfg(target_os = "linux")]
        {
            let (boot, namespace) = clock.id().split_once(':').unwrap();
            assert_eq!(boot.len(), 36, "{boot:?} is no boot id");
            assert!(namespace.parse::<u64>().is_ok());
        }
        let before = clock.now();
        assert!(clock.now() >= before && before > 0);
    }
}
