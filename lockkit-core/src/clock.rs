//! The clock on which leases count.
//!
//! Leases are counted on a clock that goes on while the machine is suspended, which
//! [`std::time::Instant`] does not do on Linux and macOS. It is tokio's clock, so that tests can
//! pause it, plus the time slept. The client's wall clock is never read.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// About 30 years: not every platform can represent an instant much later.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A point in time of a [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(tokio::time::Instant);

impl Instant {
    /// How long after `earlier` this is; zero if it is before.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates about 30 years ahead.
    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration.min(FAR))
    }
}

/// The earlier one of two, or the only one.
pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The engine's clock: tokio's, plus the time for which the machine was suspended.
///
/// Cheap to clone; clones are the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// For how many nanoseconds the machine was suspended: enough for 584 years.
    slept: AtomicU64,
    /// Told when `slept` grows, and when a locker is shut down. There are several, to spread the
    /// sleepers, since each of these has a lock.
    roused: [Notify; 8],
    /// The clocks at the time when this one was made, from which time slept is measured.
    measured: Option<Baseline>,
    is_simulated: bool,
}

impl Inner {
    fn new(measured: Option<Baseline>) -> Self {
        let (slept, roused) = (AtomicU64::new(0), Default::default());
        Self { slept, roused, measured, is_simulated: false }
    }

    fn slept(&self) -> Duration {
        Duration::from_nanos(self.slept.load(Ordering::Acquire))
    }
}

impl Clock {
    /// The clock of this machine.
    ///
    /// One thread per process checks once a second whether the machine was suspended.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Clock> = LazyLock::new(|| {
            let clock = Clock(Arc::new(Inner::new(Baseline::measure())));
            let watched = clock.clone();
            // Without the thread, sleepers notice a jump only at their next look at the clock.
            let spawned =
                std::thread::Builder::new().name("lockkit-clock".into()).spawn(move || {
                    loop {
                        std::thread::sleep(Duration::from_secs(1));
                        watched.now();
                    }
                });
            if let Err(error) = spawned {
                tracing::warn!(%error, "no thread to watch for suspension of this machine");
            }
            clock
        });
        SYSTEM.clone()
    }

    /// A clock for tests, which sleeps when [told to](Self::suspend).
    pub fn simulated() -> Self {
        Self(Arc::new(Inner { is_simulated: true, ..Inner::new(None) }))
    }

    /// Lets a [simulated](Self::simulated) machine sleep: the clock jumps ahead, while timers
    /// stand still.
    ///
    /// # Panics
    ///
    /// On the clock of this machine: every lock of the process counts on it.
    pub fn suspend(&self, duration: Duration) {
        assert!(self.0.is_simulated, "only a simulated machine is suspended on demand");
        self.0.slept.fetch_add(nanoseconds(duration), Ordering::AcqRel);
        self.rouse();
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        Instant(tokio::time::Instant::now() + self.slept())
    }

    /// What time it is at least: a cheaper look, which may not know yet of a suspension within the
    /// last second. It is for stamps that a lease is counted from, where early is safe, and for
    /// keepers, which a jump wakes.
    pub(crate) fn stamp(&self) -> Instant {
        Instant(tokio::time::Instant::now() + self.0.slept())
    }

    /// Returns at `instant`, or within a second of waking up after it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is consumed.
    pub fn sleep_until(&self, instant: Instant) -> impl Future<Output = ()> + Send {
        self.sleep_until_some(Some(instant))
    }

    /// Like [`sleep_until`](Self::sleep_until); never returns for `None`.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, as captured and as moved"
    )]
    pub(crate) fn sleep_until_some(
        &self,
        instant: Option<Instant>,
    ) -> impl Future<Output = ()> + Send {
        async move {
            loop {
                // Made before the look at the clock, so that no jump after it is missed.
                let roused = self.roused();
                let Some(timer) = instant.map(|instant| self.timer(instant)) else {
                    return std::future::pending().await;
                };
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(timer) => return,
                    () = roused => (),
                }
            }
        }
    }

    /// Resolves when all sleepers are to look again at what time it is, and at whether all is over.
    pub(crate) fn roused(&self) -> Notified<'_> {
        self.0.roused[fastrand::usize(..self.0.roused.len())].notified()
    }

    /// Has all sleepers look again.
    pub(crate) fn rouse(&self) {
        self.0.roused.iter().for_each(Notify::notify_waiters);
    }

    /// `instant` as tokio's timers count, unless the machine is suspended before it.
    pub(crate) fn timer(&self, instant: Instant) -> tokio::time::Instant {
        // Before the start of tokio's clock: long past.
        instant.0.checked_sub(self.0.slept()).unwrap_or_else(tokio::time::Instant::now)
    }

    fn slept(&self) -> Duration {
        /// Differences below this are noise from reading two clocks one after the other.
        const NOISE: Duration = Duration::from_millis(5);
        let known = self.0.slept();
        let Some(slept) = self.0.measured.as_ref().and_then(Baseline::slept_since) else {
            return known;
        };
        if slept <= known + NOISE {
            return known;
        }
        let before =
            Duration::from_nanos(self.0.slept.fetch_max(nanoseconds(slept), Ordering::AcqRel));
        // Of those who see the same jump at once, the first tells of it.
        if slept > before + NOISE {
            tracing::info!(asleep = ?(slept - before), "the machine was suspended");
            self.rouse();
        }
        before.max(slept)
    }
}

/// Saturates.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

/// Two clocks at one moment: one that stops in suspend and one that does not.
#[derive(Debug)]
struct Baseline {
    awake: std::time::Instant,
    always: Duration,
}

impl Baseline {
    fn measure() -> Option<Self> {
        // Read first here, and last in the looks that follow: a delay in between then hides time
        // slept, and adds none.
        let awake = std::time::Instant::now();
        Some(Self { awake, always: always()? })
    }

    fn slept_since(&self) -> Option<Duration> {
        let always = always()?.checked_sub(self.always)?;
        Some(always.saturating_sub(self.awake.elapsed()))
    }
}

/// The reading of the clock that goes on in suspend, and otherwise runs like
/// [`std::time::Instant`]'s: a clock that is slewed would drift away from one that is not.
#[cfg(target_vendor = "apple")]
fn always() -> Option<Duration> {
    use nix::libc::CLOCK_MONOTONIC_RAW;
    use nix::time::{ClockId, clock_gettime};
    Some(clock_gettime(ClockId::from_raw(CLOCK_MONOTONIC_RAW)).ok()?.into())
}

/// The reading of the clock that goes on in suspend, and otherwise runs like
/// [`std::time::Instant`]'s.
#[cfg(not(target_vendor = "apple"))]
fn always() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::Boottime)).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
compile_error!("lockkit knows no clock on this system that goes on while the machine is suspended");

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;

    use super::{Baseline, Clock, Inner};
    use crate::driven::{Driven, NoReport};
    use crate::driver::{Attempt, Claim, Driver, DriverError, Grant, Release, Renewal, Vouch};
    use crate::engine::Engine;
    use crate::memory::MemoryDriver;
    use crate::options::{Renew, Wait};
    use crate::progress::Progress;
    use crate::pursuit::{Asked, Pursuit};
    use crate::tenure::{Tenure, Vouched};
    use crate::{Capabilities, Error, Label, Liveness, LockGuard, LockName, Locker, Namespace};

    const ASLEEP: Duration = Duration::from_secs(60);

    /// The clock of a machine that was suspended, which nobody has noticed yet.
    fn just_awake() -> Clock {
        let mut baseline = Baseline::measure().unwrap();
        baseline.always = baseline.always.checked_sub(ASLEEP).unwrap();
        Clock(Arc::new(Inner::new(Some(baseline))))
    }

    /// Grants at once, and does not look at the clock.
    #[derive(Debug)]
    struct Free;

    #[async_trait]
    impl Driver for Free {
        fn id(&self) -> &'static str {
            "free"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::new(Liveness::Lease)
        }

        async fn try_acquire(&self, _: &Claim) -> Result<Attempt, DriverError> {
            Ok(Attempt::Granted(Grant::new()))
        }

        async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
            Ok(Renewal::Lost)
        }

        async fn release(&self, _: &Claim) -> Result<Release, DriverError> {
            Ok(Release::Freed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_wakes_its_sleepers() {
        let clock = Clock::simulated();
        let start = clock.now();
        let hour = Duration::from_secs(3600);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(start + hour).await }
        });
        tokio::task::yield_now().await;
        clock.suspend(hour);
        sleeper.await.unwrap();
        assert_eq!(clock.now().saturating_duration_since(start), hour);
    }

    #[test]
    #[should_panic(expected = "only a simulated machine")]
    fn the_clock_of_all_locks_of_the_process_does_not_jump_on_demand() {
        Clock::system().suspend(ASLEEP);
    }

    #[tokio::test]
    async fn what_is_acquired_just_after_a_suspension_is_held() {
        let builder = Locker::builder(MemoryDriver::new()).ttl(ASLEEP / 6).clock(just_awake());
        let lock = builder.build().unwrap().lock("a").unwrap();
        let guard = lock.try_acquire().await.unwrap();
        assert!(guard.is_some_and(|guard| guard.is_held()));
    }

    #[tokio::test]
    async fn what_was_waited_for_until_just_after_a_suspension_is_held() {
        let (engine, claim) = wanted();
        let waited = Driven::new(&engine, |mut caller| {
            let engine = Arc::clone(&engine);
            async move {
                let clock = &engine.clock;
                let mut progress = Progress::new(clock.stamp(), Wait::Forever, Renew::Auto);
                let mut pursuit = Pursuit::of(&engine, &claim, &mut progress);
                let won = pursuit.wait(None, &mut caller).await;
                assert!(won.unwrap().vouched.is_good_at(clock.now()));
            }
        });
        assert_eq!(waited.await.err(), Some(NoReport::Gone));
    }

    #[tokio::test]
    async fn what_was_asked_for_before_a_suspension_is_asked_for_again() {
        let (engine, claim) = wanted();
        let asked = Driven::new(&engine, |mut caller| {
            let engine = Arc::clone(&engine);
            async move {
                let before = engine.clock.stamp();
                let mut progress = Progress::new(before, Wait::Forever, Renew::Auto);
                let mut pursuit = Pursuit::of(&engine, &claim, &mut progress);
                let asked = pursuit.begin(&mut caller).await;
                assert!(matches!(asked, Some(Asked::Again(_))), "its lease is over");
            }
        });
        assert_eq!(asked.await.err(), Some(NoReport::Gone));
    }

    /// The backend cannot tell whether it still had the hold.
    #[tokio::test]
    async fn what_is_released_just_after_a_suspension_was_lost() {
        let (engine, claim) = wanted();
        let vouched = Vouched::new(Vouch::FromRequest, engine.clock.stamp(), claim.ttl());
        let tenure = Tenure::new(engine, claim, &Grant::new(), vouched, None, None);
        let released = LockGuard::new(Arc::new(tenure)).release().await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    }

    /// A claim to a free lock, on a machine that was suspended without anybody having noticed.
    fn wanted() -> (Arc<Engine>, Claim) {
        let engine = Arc::new(Engine::new(Arc::new(Free), just_awake(), Label::of_this_process()));
        let (clock, label) = (engine.clock.clone(), engine.label.clone());
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let claim = Claim::by(label, clock, name, ASLEEP / 6).waiting();
        engine.check_running().unwrap();
        (engine, claim)
    }
}
