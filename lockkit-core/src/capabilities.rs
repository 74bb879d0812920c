use std::fmt;
use std::time::Duration;

/// What a driver promises, as data. Each driver publishes its own as a `const CAPABILITIES`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What ends a hold that nobody released.
    pub liveness: Liveness,
    /// The order in which waiters are served.
    pub fairness: Fairness,
    /// Whether every grant carries a fencing token.
    pub fencing: bool,
    /// Whether a waiter hears of a release without polling for it.
    pub notification: bool,
    /// Whether the driver can tell who holds and who waits, and can [break](super::driver::Inspect)
    /// a hold.
    pub inspection: bool,
    /// The shortest lease the driver can keep.
    pub min_ttl: Duration,
    /// The longest lease the driver can keep.
    pub max_ttl: Duration,
}

impl Capabilities {
    /// The shortest lease of any driver.
    pub const MIN_TTL: Duration = Duration::from_millis(50);
    /// The longest lease of any driver.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

    /// The least that any driver offers, with holds that end as `liveness` says.
    pub const fn new(liveness: Liveness) -> Self {
        Self {
            liveness,
            fairness: Fairness::Unordered,
            fencing: false,
            notification: false,
            inspection: false,
            min_ttl: Self::MIN_TTL,
            max_ttl: Self::MAX_TTL,
        }
    }

    /// Declares the order in which waiters are served.
    #[must_use]
    pub const fn fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// Declares that every grant carries a fencing token.
    #[must_use]
    pub const fn fencing(mut self) -> Self {
        self.fencing = true;
        self
    }

    /// Declares that [`Driver::changed`](super::driver::Driver::changed) tells of a release.
    #[must_use]
    pub const fn notification(mut self) -> Self {
        self.notification = true;
        self
    }

    /// Declares that the driver has the part behind
    /// [`Driver::inspect`](super::driver::Driver::inspect).
    #[must_use]
    pub const fn inspection(mut self) -> Self {
        self.inspection = true;
        self
    }

    /// Narrows the leases that the driver can keep.
    #[must_use]
    pub const fn ttl(mut self, min: Duration, max: Duration) -> Self {
        self.min_ttl = min;
        self.max_ttl = max;
        self
    }
}

/// What ends a hold that nobody released.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// A lease, which runs out unless it is renewed. A dead holder blocks for one lease at most.
    Lease,
    /// A session with the backend, shared by all locks of a locker. It ends some time after the
    /// backend last heard of the locker.
    Session,
    /// The holder's process. A dead holder frees the lock at once; a stopped one keeps it.
    Process,
}

/// The order in which waiters are served.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// First come, first served: always. Where more than 16 acquisitions of one locker wait for a
    /// lock, and do not ask to be served in order, these come as they have places at the backend: 16
    /// at a time, in the order in which they began to wait.
    Fifo,
    /// First come, first served among acquisitions that ask for it; any other waiter may win once
    /// none of those is waiting.
    OnRequest,
    /// Any waiter may win.
    Unordered,
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "lease",
            Self::Session => "session",
            Self::Process => "process",
        })
    }
}

impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fifo => "first come, first served",
            Self::OnRequest => "first come, first served on request",
            Self::Unordered => "none",
        })
    }
}
