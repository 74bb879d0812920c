use std::time::Duration;

use tokio::time::{Instant, sleep};

const SHORTEST: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_secs(1);
/// After so long without an attempt, the next is the first again. Longer than any pause and an
/// attempt together, so that an outage counts as one.
const CALM: Duration = Duration::from_secs(5);

/// Spaces attempts to connect: the first at once, then with pauses that double up to a second.
///
/// A connection that breaks soon after it was made counts as a failed attempt.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// Returns when it is time for the next attempt.
    pub(crate) async fn pause(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() > CALM) {
            self.attempts = 0;
        } else {
            let longest = LONGEST.min(SHORTEST * (1 << self.attempts.min(6)));
            sleep(longest.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            self.attempts += 1;
        }
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::Backoff;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_in_an_outage_and_start_over_after_it() {
        let mut backoff = Backoff::default();
        let mut pause = async || {
            let start = Instant::now();
            backoff.pause().await;
            start.elapsed()
        };
        assert_eq!(pause().await, Duration::ZERO);
        assert!(pause().await <= Duration::from_millis(26));
        for _ in 0..100 {
            assert!(pause().await <= Duration::from_millis(1001));
        }
        assert!(pause().await >= Duration::from_millis(500));
        sleep(Duration::from_secs(6)).await;
        assert_eq!(pause().await, Duration::ZERO);
    }
}
