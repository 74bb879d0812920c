use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::OwnerId;
use crate::tenure::{Phase, Tenure};
use crate::{Error, FencingToken, Liveness, LockName};

/// A look at a hold, cheap to clone. It does not keep the lock held: the [`LockGuard`](crate::LockGuard) does that.
///
/// ```
/// # use lockkit_core::{Hold, Locker, memory::MemoryDriver};
/// async fn copy(rows: &[u32], hold: Hold) -> usize {
///     let mut copied = 0;
///     for row in rows {
///         if !hold.is_held() {
///             break;
///         }
///         // With the token, by which the store refuses who was overtaken since.
///         write(*row, hold.fencing_token()).await;
///         copied += 1;
///     }
///     copied
/// }
/// # async fn write(_: u32, _: Option<lockkit_core::FencingToken>) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// # let guard = Locker::new(MemoryDriver::new()).lock("copy")?.acquire().await?;
/// # assert_eq!(copy(&[1, 2], guard.hold()).await, 2);
/// # guard.release().await }
/// ```
#[derive(Clone)]
pub struct Hold {
    pub(crate) tenure: Arc<Tenure>,
}

impl Hold {
    /// The name of the lock that is held.
    pub fn name(&self) -> &LockName {
        self.tenure.claim.name()
    }

    /// The id under which the backend knows the holder. Each acquisition has a new one.
    pub fn owner(&self) -> OwnerId {
        self.tenure.claim.owner()
    }

    /// The number to hand to the resource that the lock protects: the same for all guards of one
    /// hold. `None` where the driver has no honest one to give.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.tenure.token
    }

    /// How many replicas of the backend had acknowledged the grant when it was answered. `None`
    /// where the driver waits for none.
    ///
    /// So many copies make it less likely that a failover forgets the hold, but no more than that:
    /// which replica takes over is not decided by what it has acknowledged.
    pub fn acknowledged_by(&self) -> Option<u32> {
        self.tenure.replicas
    }

    /// Whether the hold can be vouched for at this moment: by the clock, not by a flag.
    ///
    /// Once false, it stays false. A pause can come after any check; the fencing token is what
    /// makes the effect safe.
    pub fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    /// How long the hold can be vouched for if it is not renewed; zero if it has ended; `None` if
    /// it lasts as long as the process.
    pub fn valid_for(&self) -> Option<Duration> {
        let standing = self.tenure.standing();
        let now = self.tenure.engine.clock.now();
        match standing.phase {
            Phase::Held => Some(standing.vouched.until?.saturating_duration_since(now)),
            _ => Some(Duration::ZERO),
        }
    }

    /// How long a confirmation by the backend is good for, as granted: the lease, or the length of the
    /// session less what the driver cannot vouch for. `None` if the hold lasts as long as the process.
    pub fn ttl(&self) -> Option<Duration> {
        let vouched = self.tenure.glance().vouched;
        // Not by `until`, which the longest hold sets, too.
        let liveness = self.tenure.engine.driver.capabilities().liveness;
        (liveness != Liveness::Process).then_some(vouched.ttl)
    }

    /// For how long the backend has not confirmed the hold: since the last request left that it
    /// answered with the grant or a renewal. It goes on when the hold has ended.
    pub fn unconfirmed_for(&self) -> Duration {
        let vouched = self.tenure.glance().vouched;
        self.tenure.engine.clock.now().saturating_duration_since(vouched.since)
    }

    /// Returns once the hold has ended: when it is lost, when its last guard is dropped, or, at
    /// most 50 milliseconds later, when that guard is released. It never returns without cause.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is consumed.
    pub async fn ended(&self) {
        self.ends_within(Duration::ZERO).await;
    }

    /// Returns once the hold can be vouched for no longer than `left`, for want of a renewal or
    /// because it comes to its [maximum](crate::Lease::max_hold): time to end the work in good order. At
    /// the latest it returns when the hold has [ended](Self::ended). Like [`lost`](crate::LockGuard::lost)
    /// it may be late by a second after a suspension, and needs a runtime that runs.
    ///
    /// A renewal that comes through afterwards makes the hold longer again. It is sent when a third
    /// of the lease is over, so `left` should be half of the lease at most: with two thirds, this
    /// returns without cause.
    ///
    /// ```
    /// # use lockkit_core::{Hold, Lease, Locker, memory::MemoryDriver};
    /// # use std::time::Duration;
    /// async fn import(hold: Hold) {
    ///     tokio::select! {
    ///         () = parts() => (),
    ///         // Nobody else begins within the next two seconds.
    ///         () = hold.ends_within(Duration::from_secs(2)) => note_where_to_go_on().await,
    ///     }
    /// }
    /// # async fn parts() { std::future::pending().await }
    /// # async fn note_where_to_go_on() {}
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let locker = Locker::new(MemoryDriver::new());
    ///
    /// let lease = Lease::new(Duration::from_secs(10)).max_hold(Duration::from_secs(60));
    /// let guard = locker.lock("import")?.leased(lease)?.acquire().await?;
    /// import(guard.hold()).await;
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is consumed.
    pub async fn ends_within(&self, left: Duration) {
        let tenure = &self.tenure;
        if tenure.engine.inside(tenure.ends_within(left)).await.is_none() {
            // The keeper ends with its runtime, and may not have come to that yet.
            tenure.lose();
        }
    }

    pub(crate) fn lost_error(&self) -> Error {
        self.tenure.engine.lost_error(self.name())
    }

    /// Why a hold has ended that nobody released.
    pub(crate) fn end_error(&self) -> Error {
        let engine = &self.tenure.engine;
        match engine.stopping.is_cancelled() {
            true => engine.shut_down_error(),
            false => self.lost_error(),
        }
    }

    pub(crate) fn fmt_as(&self, type_name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(type_name)
            .field("name", self.name())
            .field("owner", &self.owner())
            .field("fencing_token", &self.fencing_token())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Hold", f)
    }
}
