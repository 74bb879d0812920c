//! Durations as databases keep them: in whole microseconds.

use std::time::Duration;

/// Rounded up, so that a lease is not shorter than asked for.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Zero if the number is negative.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{duration, micros};

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_millis(50)), 50_000);
        assert_eq!(micros(Duration::MAX), i64::MAX);
    }

    #[test]
    fn what_is_over_is_no_time() {
        assert_eq!(duration(-1), Duration::ZERO);
        assert_eq!(duration(50_000), Duration::from_millis(50));
    }
}
