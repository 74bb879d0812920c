//! What the drivers' benchmarks of overhead have in common.

use std::io;
use std::time::Duration;

/// Whether an argument of the process asked for this part, or no argument asked for any.
#[must_use]
pub fn is_wanted(part: &str) -> bool {
    let mut parts = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|word| word == part)
}

/// Binds this thread to one CPU, which the threads and servers that are started from here on share.
///
/// # Errors
///
/// If the system refuses it, or is one on which this crate cannot do it: all but Linux.
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

/// The middle value; the values are in order afterwards.
///
/// # Panics
///
/// If there is none, or one is not a number.
pub fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).expect("no value is NaN"));
    values[values.len() / 2]
}

/// How many times `other` goes into `one`.
#[must_use]
pub fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

/// The middle value with the least and the greatest, for people.
///
/// # Panics
///
/// If there is none, or one is not a number.
pub fn spread(ratios: &mut [f64]) -> String {
    let middle = median(ratios);
    format!("{middle:.2} ({:.2} to {:.2})", ratios[0], ratios[ratios.len() - 1])
}
