use std::time::Duration;

use lockkit_core::driver::Limit;

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// In all.
    pub(crate) limit: Limit,
    /// How long the call with the least time may take, of those that share the request.
    pub(crate) shortest: Duration,
}

impl From<Limit> for Wait {
    fn from(limit: Limit) -> Self {
        Self { limit, shortest: limit.length() }
    }
}

impl Wait {
    /// How long to wait for one member, while there are others to ask. What a call has spent before
    /// does not count: a member is no worse for being asked late.
    pub(crate) fn patience(self) -> Duration {
        self.shortest / 2
    }

    /// Whether to leave a member that says nothing for so long. The second member that a call asks
    /// gets a little less time than the first, since only so much is left.
    pub(super) fn is_over_after(self, given: Duration) -> bool {
        given >= self.patience() * 4 / 5
    }
}
