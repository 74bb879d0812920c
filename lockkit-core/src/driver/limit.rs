use std::time::Duration;

use tokio::time::{Instant, Timeout, timeout_at};

use crate::clock::FAR;

/// How long all requests of one call may take together, from when this is made: for drivers that send
/// several. How long that is for a claim, [`CallLimit`](super::CallLimit) tells.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::driver::Limit;
///
/// let limit = Limit::new(Duration::from_secs(3));
/// assert_eq!(limit.length(), Duration::from_secs(3));
/// assert!(limit.left() <= limit.length());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    length: Duration,
    end: Instant,
}

impl Limit {
    /// A limit of this length from now on, of 30 years at most.
    pub fn new(length: Duration) -> Self {
        let length = length.min(FAR);
        Self { length, end: Instant::now() + length }
    }

    /// How long all requests may take together.
    pub fn length(self) -> Duration {
        self.length
    }

    /// How long the next request may take.
    pub fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Waits for the answer until the limit is over.
    ///
    /// # Errors
    ///
    /// If there is none by then.
    ///
    /// # Panics
    ///
    /// If there is no runtime with timers around.
    ///
    /// # Cancel safety
    ///
    /// The request is dropped with the wait for it.
    pub fn bound<F: Future>(self, request: F) -> Timeout<F> {
        // Not an `async fn`, which would have room for the request twice.
        timeout_at(self.end, request)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::Limit;

    #[test]
    fn one_without_end_is_a_long_one() {
        assert!(Limit::new(Duration::MAX).left() > Duration::from_secs(1_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_is_bound_by_it_ends_together() {
        let (length, begun) = (Duration::from_secs(3), Instant::now());
        let limit = Limit::new(length);
        assert!(limit.bound(sleep(Duration::from_secs(2))).await.is_ok());
        assert_eq!((limit.left(), limit.length()), (Duration::from_secs(1), length));
        assert!(limit.bound(pending::<()>()).await.is_err());
        assert_eq!((begun.elapsed(), limit.left()), (length, Duration::ZERO));
    }
}
