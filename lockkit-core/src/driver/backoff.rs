use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_secs(1);

/// Spaces attempts to connect. There is no pause after a success; after failures, pauses double up
/// to a second, with jitter, so that clients that lost a server together do not all come back at
/// once.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::driver::Backoff;
///
/// let mut backoff = Backoff::default();
/// assert_eq!(backoff.pause(), Duration::ZERO);
/// backoff.failed();
/// assert!(backoff.pause() > Duration::ZERO);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A connection that breaks sooner counts as a failed attempt.
    pub const CALM: Duration = Duration::from_secs(5);

    /// How long to wait before the next attempt.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => {
                let longest = LONGEST.min(SHORTEST * (1 << (failures - 1).min(6)));
                longest.mul_f64(0.5 + fastrand::f64() / 2.0)
            }
        }
    }

    /// The attempt failed: the next pause is longer.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// The attempt succeeded: the next one is made without a pause.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The connection broke, or could not be made, so long after the attempt began: that was a
    /// success if it took as long as [`CALM`](Self::CALM).
    pub fn broke_after(&mut self, time: Duration) {
        match time < Self::CALM {
            true => self.failed(),
            false => self.succeeded(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn pauses_grow_in_an_outage_and_start_over_after_it() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(), Duration::ZERO);
        backoff.failed();
        assert!((12..=25).contains(&backoff.pause().as_millis()));
        for _ in 0..100 {
            backoff.failed();
        }
        assert!((500..=1000).contains(&backoff.pause().as_millis()));
        backoff.succeeded();
        assert_eq!(backoff.pause(), Duration::ZERO);
    }

    #[test]
    fn what_breaks_soon_has_failed() {
        let mut backoff = Backoff::default();
        backoff.broke_after(Backoff::CALM - Duration::from_millis(1));
        assert!(backoff.pause() > Duration::ZERO);
        backoff.broke_after(Backoff::CALM);
        assert_eq!(backoff.pause(), Duration::ZERO);
    }
}
