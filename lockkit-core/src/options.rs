use std::time::Duration;

use crate::{Capabilities, Error, Liveness, Result};

/// How to acquire a lock.
///
/// By default, an acquisition waits for as long as it takes, with the lease of the lock.
///
/// ```
/// # use lockkit_core::{AcquireOptions, Locker, Wait, memory::MemoryDriver};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// # let locker = Locker::new(MemoryDriver::new());
/// let options = AcquireOptions::new()
///     .wait(Wait::AtMost(Duration::from_secs(3)))
///     .ttl(Duration::from_secs(120));
/// let guard = locker.lock("orders/42")?.acquire_with(options).await?;
/// # guard.release().await }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AcquireOptions {
    pub(crate) wait: Wait,
    pub(crate) ttl: Option<Duration>,
}

impl AcquireOptions {
    /// Waits for as long as it takes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Uses a lease of this length for this acquisition. This works only where holds are
    /// [leases](Liveness::Lease).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }
}

/// How long to wait for a lock that is taken.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one request.
    No,
    /// For as long as it takes.
    #[default]
    Forever,
    /// No longer than this in all. Zero is one request.
    AtMost(Duration),
}

/// A hold that runs out unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ttl: Duration,
    renew: Renew,
    max_hold: Option<Duration>,
}

impl Lease {
    /// A lease of this length, renewed after a third of it for as long as the guard lives.
    ///
    /// The length is also how long a dead holder blocks the lock.
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, renew: Renew::Auto, max_hold: None }
    }

    /// Sets whether the lease is renewed.
    #[must_use]
    pub const fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// Ends the hold this long after the grant, renewed or not. The guard reports it as lost.
    #[must_use]
    pub const fn max_hold(mut self, duration: Duration) -> Self {
        self.max_hold = Some(duration);
        self
    }

    /// How long the hold lasts between renewals.
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether the lease is renewed.
    pub const fn renewal(&self) -> Renew {
        self.renew
    }

    /// How long the hold may last in all.
    pub const fn longest_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// The lease with this maximum, unless it has one.
    pub(crate) fn or_max_hold(mut self, duration: Option<Duration>) -> Self {
        self.max_hold = self.max_hold.or(duration);
        self
    }

    pub(crate) fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The nearest lease that a driver with these capabilities can keep.
    pub(crate) fn within(self, can: &Capabilities) -> Self {
        self.with_ttl(self.ttl.max(can.min_ttl).min(can.max_ttl))
    }

    /// Fails before any request is sent if the driver cannot keep this lease.
    pub(crate) fn check(&self, driver: &'static str, can: &Capabilities) -> Result<()> {
        let least = Capabilities::MIN_TTL.max(can.min_ttl);
        let most = Capabilities::MAX_TTL.min(can.max_ttl);
        if self.ttl < least || self.ttl > most {
            let reason = format!("{:?} is not within {least:?} to {most:?} ({driver})", self.ttl);
            return Err(Error::config("lease", reason));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::config("max_hold", "must be more than zero"));
        }
        if self.renew == Renew::Never && can.liveness != Liveness::Lease {
            let what = format!("holds that are not renewed: they end with the {}", can.liveness);
            return Err(Error::unsupported(driver, what));
        }
        Ok(())
    }
}

impl Default for Lease {
    /// 30 seconds, renewed.
    fn default() -> Self {
        Self::new(Duration::from_secs(30))
    }
}

/// Whether a lease is renewed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renew {
    /// After a third of the lease, for as long as the guard lives.
    #[default]
    Auto,
    /// Only by [`LeasedGuard::extend`](crate::LeasedGuard::extend).
    Never,
}
