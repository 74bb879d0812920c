//! How long to leave a backend alone.

use std::time::Duration;

/// Doubles from one duration to another.
pub(crate) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

/// Spreads what would happen at the same time: 80 to 100 % of `duration`.
pub(crate) fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(1.0 - 0.2 * fastrand::f64())
}

/// Keeps those apart who have only the clock to go by, and may have begun together: 10 to 100 % of
/// `duration`. In step they would stand in each other's way, and leave a free lock alone meanwhile.
pub(crate) fn spread(duration: Duration) -> Duration {
    duration.mul_f64(0.1 + 0.9 * fastrand::f64())
}
