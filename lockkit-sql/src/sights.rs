//! What this process has seen of leases that ran out, for users who do not trust the server's
//! clock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Claim, Instant};
use lockkit_core::{LockName, Parameter};

/// Whether a lease that ran out on the server's clock is also to be seen to run out here.
pub(crate) const OBSERVE: Parameter = Parameter::new(
    "observe",
    "`true`: take over a lease that ran out only after having seen it unchanged for as long, in case \
     the server's clock is stepped",
    "false",
);

/// How many locks are remembered at most. Others' turn comes when those are done with: if one made room
/// for the next, nobody who asks for many would see any for a whole lease.
const MOST: usize = 10_000;

/// A hold that has run out on the server's clock, as its row tells. Each grant has a token of its
/// own, and each renewal a beat of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunOut {
    pub(crate) token: i64,
    pub(crate) beat: i64,
    /// For how long after each renewal the holder believes in its hold.
    pub(crate) lease: Duration,
}

/// Which of the others' holds that have run out may be taken over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takeover {
    Any,
    Only(Option<RunOut>),
}

impl Takeover {
    /// Whether the server's clock does not decide alone, and the token and beat of the hold that
    /// may be taken over; 0 and 0, which no row has, stand for none.
    pub(crate) fn parts(self) -> (bool, i64, i64) {
        match self {
            Self::Any => (false, 0, 0),
            Self::Only(None) => (true, 0, 0),
            Self::Only(Some(seen)) => (true, seen.token, seen.beat),
        }
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn allows(self, run_out: RunOut) -> bool {
        match self {
            Self::Any => true,
            Self::Only(allowed) => allowed == Some(run_out),
        }
    }

    /// What `claim` may take over: any hold, where nothing is remembered.
    pub(crate) fn of(sights: Option<&Sights>, claim: &Claim) -> Self {
        match sights {
            None => Self::Any,
            Some(sights) => Self::Only(sights.ripe(claim.name(), claim.now())),
        }
    }
}

/// The holds that have run out, each with the time since which this process has seen it unchanged.
#[derive(Debug, Default)]
pub(crate) struct Sights {
    by_lock: Mutex<HashMap<LockName, Sight>>,
}

#[derive(Clone, Copy, Debug)]
struct Sight {
    of: RunOut,
    since: Instant,
}

impl Sights {
    /// Takes note of what was seen in an answer that has arrived by `now`. Returns how long to wait
    /// until the hold may be taken over.
    ///
    /// The holder's last renewal was carried out before that answer, and the holder believes in its
    /// hold for a lease, counted from before it asked for that renewal. So a lease after the
    /// answer, it no longer does.
    pub(crate) fn note(&self, name: &LockName, of: RunOut, now: Instant) -> Duration {
        let mut by_lock = self.by_lock();
        let since = match by_lock.get(name) {
            Some(earlier) if earlier.of == of => earlier.since,
            _ => now,
        };
        if by_lock.len() >= MOST {
            // Nobody has asked for these for a lease since they could have been taken over.
            by_lock.retain(|_, Sight { of, since }| {
                now.saturating_duration_since(*since) < 2 * of.lease
            });
        }
        if by_lock.len() < MOST || by_lock.contains_key(name) {
            by_lock.insert(name.clone(), Sight { of, since });
        }
        of.lease.saturating_sub(now.saturating_duration_since(since))
    }

    /// The hold that may be taken over, if it is still as it was seen.
    pub(crate) fn ripe(&self, name: &LockName, now: Instant) -> Option<RunOut> {
        let Sight { of, since } = *self.by_lock().get(name)?;
        (now.saturating_duration_since(since) >= of.lease).then_some(of)
    }

    /// Forgets what was seen of the lock, which has another holder.
    pub(crate) fn forget(&self, name: &LockName) {
        self.by_lock().remove(name);
    }

    fn by_lock(&self) -> MutexGuard<'_, HashMap<LockName, Sight>> {
        // Every change is one call.
        self.by_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::driver::Clock;
    use lockkit_core::{LockName, Namespace};

    use super::{MOST, RunOut, Sights};

    const LEASE: Duration = Duration::from_secs(10);

    fn named(name: &str) -> LockName {
        LockName::new(&Namespace::default(), name).unwrap()
    }

    #[test]
    fn only_what_stayed_the_same_for_a_lease_is_ripe() {
        let (sights, name, start) = (Sights::default(), named("a"), Clock::system().now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let seen = RunOut { token: 7, beat: 2, lease: LEASE };
        assert_eq!(sights.ripe(&name, start), None);
        assert_eq!(sights.note(&name, seen, start), LEASE);
        assert_eq!(sights.note(&name, seen, after(4)), Duration::from_secs(6));
        assert_eq!(sights.ripe(&name, after(9)), None);
        assert_eq!(sights.ripe(&name, after(10)), Some(seen));
        // It was renewed meanwhile.
        let renewed = RunOut { beat: 3, ..seen };
        assert_eq!(sights.note(&name, renewed, after(10)), LEASE);
        assert_eq!(sights.ripe(&name, after(19)), None);
        sights.forget(&name);
        assert_eq!(sights.ripe(&name, after(100)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (sights, start) = (Sights::default(), Clock::system().now());
        let seen = RunOut { token: 7, beat: 2, lease: LEASE };
        for number in 0..MOST as u64 + 5 {
            let now = start + Duration::from_millis(number);
            sights.note(&named(&number.to_string()), seen, now);
        }
        assert_eq!(sights.by_lock().len(), MOST);
        let (first, last) = (named("0"), named(&(MOST + 4).to_string()));
        let later = start + LEASE;
        assert_eq!(sights.ripe(&first, later), Some(seen));
        assert_eq!(sights.note(&last, seen, later), LEASE);
        assert_eq!(sights.by_lock().len(), MOST, "what may be taken over now is wanted still");
        let later = start + 3 * LEASE;
        assert_eq!(sights.note(&last, seen, later), LEASE);
        assert_eq!(sights.by_lock().len(), 1);
        assert_eq!(sights.ripe(&last, later + LEASE), Some(seen));
    }
}
