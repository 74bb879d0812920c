use std::time::Duration;

use tokio::time::Instant;

/// How long all requests of one call may take together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    length: Duration,
    end: Instant,
}

impl Limit {
    /// From now on.
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, end: Instant::now() + length }
    }

    /// In all.
    pub(crate) fn length(self) -> Duration {
        self.length
    }

    /// For the next request.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub(crate) fn end(self) -> Instant {
        self.end
    }
}
