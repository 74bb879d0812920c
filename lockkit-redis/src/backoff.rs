use std::time::Duration;

use lockkit_core::driver;
use tokio::time::{Instant, sleep};

/// After this long without an attempt, the next one counts as the first again. It is longer than
/// any pause and an attempt together, so that an outage counts as one.
const CALM: Duration = Duration::from_secs(5);

/// Spaces attempts to connect: the first at once, then with pauses.
///
/// A connection that breaks soon after it was made counts as a failed attempt.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pauses: driver::Backoff,
    last: Option<Instant>,
}

impl Backoff {
    /// Returns when it is time for the next attempt.
    pub(crate) async fn pause(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() > CALM) {
            self.pauses.succeeded();
        } else {
            self.pauses.failed();
            sleep(self.pauses.pause()).await;
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
