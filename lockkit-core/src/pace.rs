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
