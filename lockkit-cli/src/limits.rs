//! How long before its lock a command has to end.

use std::time::Duration;

use humantime::format_duration;
use lockkit::{Error, Lease};

use crate::args::Run;

/// When the command has to end, by what is left of the hold.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// It is asked to end.
    pub(crate) grace: Duration,
    /// It is killed: early enough to be gone when the lock ends.
    pub(crate) reserve: Duration,
}

impl Limits {
    pub(crate) fn new(lease: Lease, options: &Run) -> lockkit::Result<Self> {
        // Otherwise each run would end with a lock that is lost.
        if let (Some(least), Some(longest)) = (options.at_least, lease.longest_hold())
            && least >= longest
        {
            let [least, longest] = [least, longest].map(format_duration);
            return Err(Error::config(
                "--at-least",
                format!("{least} is not less than the longest hold, which is {longest}"),
            ));
        }
        let ttl = options.ttl.unwrap_or(lease.ttl());
        // A hold is never good for longer than it may last, however often it is renewed.
        let (bound, length) = match lease.longest_hold() {
            Some(longest) if longest < ttl => ("the longest hold", longest),
            _ => ("the TTL", ttl),
        };
        let grace = options.grace.unwrap_or((length / 3).min(Duration::from_secs(5)));
        if grace > length / 2 {
            let (grace, length) = (format_duration(grace), format_duration(length));
            return Err(Error::config(
                "--grace",
                format!("{grace} is more than half of {bound}, which is {length}"),
            ));
        }
        let reserve = (length / 6).min(Duration::from_millis(500));
        Ok(Self { grace: grace.max(reserve), reserve })
    }

    /// The same for a session of that TTL of which a confirmation is good for `granted`. Of less than
    /// the TTL, little may be left between two confirmations, however well all goes.
    ///
    /// On ZooKeeper, what is missing is a tick. A confirmation is then up to a tick and two
    /// heartbeats old when it comes, and heartbeats are at most a sixth of what two ticks leave of the
    /// TTL apart; the next one comes after a twelfth of what was granted. So about 5/4 of what was
    /// granted, less 2/3 of the TTL, is always left: a second of three ticks of two seconds, and half
    /// of fifteen.
    pub(crate) fn of_session(self, ttl: Duration, granted: Option<Duration>) -> Self {
        match granted {
            Some(granted) if granted < ttl => {
                let left = (granted * 5 / 4).saturating_sub(ttl * 2 / 3);
                let most = (left * 5 / 6).max(granted / 12);
                Self { grace: self.grace.min(most), reserve: self.reserve.min(most / 2) }
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Limits;

    #[test]
    fn a_session_leaves_as_much_grace_as_is_documented() {
        for (ttl, granted, grace) in [(6, 4, 5_000 / 6), (30, 28, 12_500)] {
            let [ttl, granted] = [ttl, granted].map(Duration::from_secs);
            let limits = Limits { grace: ttl / 2, reserve: Duration::ZERO };
            let most = limits.of_session(ttl, Some(granted)).grace;
            assert_eq!(most.as_millis(), grace);
        }
    }
}
