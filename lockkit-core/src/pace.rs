//! How long to leave a backend alone.

use std::time::Duration;

/// Doubles from one duration to another.
pub(crate) struct Pause {
    next: Duration,
}

impl Pause {
    pub(crate) fn new(first: Duration) -> Self {
        Self { next: first }
    }

    /// This pause, or `longest` if that is shorter. The next one is twice as long.
    pub(crate) fn next(&mut self, longest: Duration) -> Duration {
        let pause = self.next.min(longest);
        self.next = pause * 2;
        pause
    }
}

/// How long to leave others the first try: for one of many waiters that are told together that a
/// lock is free.
///
/// It grows with the tries that were in vain, since they tell how many waiters there are. A waiter
/// that has not tried in vain three times may be alone with one other, which would gain nothing by
/// its patience.
pub(crate) fn courtesy(in_vain: u32) -> Duration {
    const PROMPT: u32 = 3;
    const LONGEST: u32 = 128;
    match in_vain.checked_sub(PROMPT) {
        None => Duration::ZERO,
        Some(more) => {
            let window = LONGEST.min(1 << (more + 1).min(LONGEST.ilog2()));
            Duration::from_millis(window.into()).mul_f64(fastrand::f64())
        }
    }
}

/// Spreads what would happen at the same time: 80 to 100 % of `duration`.
pub(crate) fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(1.0 - 0.2 * fastrand::f64())
}

/// Keeps apart waiters that have only the clock to go by and may have begun together: 10 to 100 %
/// of `duration`. In step they would stand in each other's way, and leave a free lock alone
/// meanwhile.
#[must_use]
pub fn spread(duration: Duration) -> Duration {
    duration.mul_f64(0.1 + 0.9 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::courtesy;

    #[test]
    fn courtesy_begins_late_and_has_an_end() {
        let longest = |in_vain| (0..1_000).map(|_| courtesy(in_vain)).max();
        assert_eq!(longest(0), Some(Duration::ZERO));
        assert_eq!(longest(2), Some(Duration::ZERO));
        let within = |most: u64, at_least: u64| {
            Some(Duration::from_millis(at_least))..Some(Duration::from_millis(most))
        };
        assert!(within(2, 1).contains(&longest(3)));
        assert!(within(4, 2).contains(&longest(4)));
        assert!(within(32, 16).contains(&longest(7)));
        assert!(within(128, 64).contains(&longest(u32::MAX)));
    }
}
