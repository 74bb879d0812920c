//! What the drivers' benchmarks of overhead have in common.

use std::io;
use std::time::Duration;

/// Whether this part was asked for by an argument of the process, or nothing was.
#[must_use]
pub fn is_wanted(part: &str) -> bool {
    let mut parts = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|word| word == part)
}

/// Binds this thread to one CPU, which the threads and servers share that are started from here on.
///
/// # Errors
///
/// The system refuses it, or is none in which this crate can do it: all but Linux.
pub fn share_one_cpu() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let allowed = sched_getaffinity(None)?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu));
        let mut one = CpuSet::new();
        one.set(last.ok_or(io::ErrorKind::NotFound)?);
        Ok(sched_setaffinity(None, &one)?)
    }
    #[cfg(not(target_os = "linux"))]
    Err(io::Error::new(io::ErrorKind::Unsupported, "a thread is bound to a CPU on Linux alone"))
}

/// The middle one; they are in order afterwards.
///
/// # Panics
///
/// There is none, or one is no number.
pub fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).expect("no value is NaN"));
    values[values.len() / 2]
}

/// How often the other goes into the one.
#[must_use]
pub fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

/// The middle one with the least and the greatest, for people.
///
/// # Panics
///
/// There is none, or one is no number.
pub fn spread(ratios: &mut [f64]) -> String {
    let middle = median(ratios);
    format!("{middle:.2} ({:.2} to {:.2})", ratios[0], ratios[ratios.len() - 1])
}
