//! What a backend must do: for authors of drivers. Users of locks need none of it.

mod backoff;
mod blocking;
mod call_limit;
mod dial;
pub mod filesystem;
mod last_good;
mod limit;
mod looks;
mod node;
mod pace;
mod turnstile;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;

pub use crate::claim::{Claim, OwnerId, ParseOwnerError};
pub use crate::clock::{Clock, Instant};
pub use crate::inspect::Inspect;
pub use crate::pace::spread;
pub use crate::parameters::CALL_LIMIT;
use crate::{BoxError, Capabilities, FencingToken};
pub use backoff::Backoff;
pub use blocking::{blocking, look_up, start_blocking};
pub use call_limit::CallLimit;
pub(crate) use call_limit::LONGEST as LONGEST_CALL;
pub use dial::dial_first;
pub use last_good::LastGood;
pub use limit::Limit;
pub use looks::{Line, Looks};
pub use node::{Node, Run};
pub use pace::pause_among;
pub use turnstile::Turnstile;

/// Translates three questions to a backend: take it, keep it, let it go.
///
/// The engine does everything else: waiting, back-off, deadlines, renewal, loss and clean-up. It
/// drops no [`try_acquire`](Self::try_acquire), [`renew`](Self::renew) or
/// [`release`](Self::release) that it has started, so these need not be cancel-safe.
/// [`changed`](Self::changed) is dropped at will, and so are, when their caller goes away, the
/// requests of [`Inspect`] and [`descriptor`](Self::descriptor).
///
/// # Contract
///
/// Each rule that can be checked is followed by the name of the check in `lockkit-conformance` that
/// enforces it.
///
/// - **Idempotent.** Repeating a method for one claim ends in the same state. A repeated ask gets
///   the same token while that grant stands (`a_repeated_ask_is_the_same_grant`), also while others
///   wait in order (`a_repeated_ask_is_no_newcomer`); after a release or an expiry, an ask by the
///   same claim is a new grant with a higher token (`an_ask_after_release_is_a_new_grant`,
///   `an_ask_after_expiry_is_a_new_grant`).
/// - **Owner-only.** `release` works after any outcome, even an unknown one, and touches nothing of
///   another owner (`only_the_owner_releases`, `release_before_any_ask_is_harmless`). A stale claim
///   can neither renew nor release, and `renew` never re-creates a hold (`only_the_owner_renews`,
///   `a_renewal_never_recreates`). The owner is compared in the very step that changes something: a
///   renewal may be under way while its claim is released, and a repeated release may be late
///   (`a_renewal_is_one_step`, `a_release_is_one_step`). The same goes while the hold is being
///   taken away, which no lock inside the driver prevents (`a_renewal_is_one_step_beside_a_break`,
///   `a_release_is_one_step_beside_a_break`, `a_repeated_ask_is_one_step_beside_a_break`).
/// - **Vouching.** An ask or a renewal that is answered yes has, when the server processed it, set
///   the lease to at least a full TTL (`a_renewal_is_a_full_lease`, `a_repeated_ask_refreshes`); no
///   request ever shortens a lease (`no_request_shortens_a_lease`). Nobody else is granted the lock
///   for as long as the answer [vouches](Vouch) for it (`a_lease_lasts`). Every grant and renewal
///   is vouched for by what ends the hold: a lease by [`Vouch::FromRequest`] or [`Vouch::Lease`], a
///   session by [`Vouch::Lease`] of the same length for every claim, a process by
///   [`Vouch::WhileAlive`] (`a_hold_is_vouched_for_as_it_ends`).
/// - **Time** is the server's, or a duration. The client's wall clock is never sent and never
///   compared. A lease ends by itself (`a_lease_runs_out`), and not before its time
///   (`a_lease_lasts`). A new grant inherits nothing of the lease before it (`a_lease_is_its_own`,
///   `a_lease_after_a_break_is_its_own`). Of several claims that ask for a lock whose lease ran out,
///   one gets it (`claims_to_what_ran_out_get_one_grant`).
/// - **Waiting.** Only a claim that [waits](Claim::waits) leaves a place (`a_try_leaves_nothing`).
///   A place is bound to a lease or session and refreshed by asking, which the engine does at least
///   every two fifths of the lease (`a_waiter_keeps_its_place`). So a dead waiter never blocks the
///   living, nor do many dead waiters block them for a lease each (`a_dead_waiter_does_not_block`,
///   `dead_waiters_run_out_together`). [`changed`](Self::changed) after a refusal misses nothing:
///   it has listened since before that ask, or it answers [`Change::AskAgain`] once its
///   subscription stands, and does so once, not at every call (`a_release_is_not_missed`,
///   `a_release_is_heard_of_whatever_the_name`, `silence_while_nothing_changes`). The same goes for
///   a subscription that stands again after a cut, for those who were refused before that
///   (`a_release_during_a_cut_is_not_missed`) and those who are refused later
///   (`a_release_after_a_cut_is_heard_of`). That one claim stops listening is nothing to others of
///   its connection (`who_shares_a_connection_is_told_after_another_gave_up`). Of the
///   waiters without a place, a release need tell only one, and the next release another:
///   [`Taken::ask_within`] bounds what the death of that one costs. A driver that tells them all
///   answers [`Change::Freed`].
/// - **Fair.** Order is by arrival of the first ask at the backend (`places_are_served_in_order`).
///   Each claim has a place of its own, even among those of one connection
///   (`places_of_one_connection_are_in_order`, `who_shares_a_connection_is_told_in_turn`), and each
///   lock has a queue of its own (`different_names_have_different_queues`). Every ask and every
///   release respects an existing queue in the same script or statement: while a fair claim waits, a
///   plain one is refused, even one that does not wait (`a_try_does_not_overtake_the_queue`).
/// - **Hand-over.** [`Change::Granted`] is good for a lease that began, on the server's clock, at
///   the grantee's last ask that was answered [`Attempt::Taken`], never for a fresh one
///   (`a_pushed_grant_lasts_from_the_last_ask`). A refusal voids every grant pushed before it
///   (`a_refusal_voids_an_earlier_push`). A waiter that is released at its turn passes that on, and
///   the next is told (`a_waiter_released_at_its_turn_passes_it_on`). The token is the one that the
///   next ask gets (`a_pushed_grant_has_a_token_of_its_own`). A release may hand the lock to any
///   claim that waits, fair or not: where the engine has waiters take turns, as it does with all
///   that have no place in order, only the one that listens asks. A release hands nothing to a
///   claim that only [listens](Claim::listens) (`who_only_listens_is_handed_nothing`). A claim that
///   was refused with [`Taken::heard`] is told of the release, or to ask again once its
///   subscription stands (`who_listens_and_is_heard_is_told`).
/// - **Bounded.** Each request ends by itself, with [`ErrorKind::Unknown`] if it was sent and not
///   answered; [`Claim::call_limit`] is the default bound (`requests_end_while_nobody_answers`,
///   `an_ask_that_did_not_arrive_leaves_nothing`). So does one whose connection is cut
///   (`an_ask_that_was_cut_off_leaves_nothing`).
/// - **No task per claim**, no waiting for holders (`a_refusal_comes_at_once`), no back-off.
///   Connection supervisors, shared subscriptions and bounded re-sends of one idempotent request are
///   the driver's; they end in [`close`](Self::close) or with the driver.
///
/// Each driver documents what a request that lands after its claim was given up can leave behind:
/// at most a hold of one TTL (`an_ask_in_a_silence_leaves_at_most_a_lease`).
#[async_trait]
pub trait Driver: Any + fmt::Debug + Send + Sync {
    /// A short lower-case name, such as `redis`.
    fn id(&self) -> &'static str;

    /// What this driver promises.
    fn capabilities(&self) -> Capabilities;

    /// Takes the lock if it is free or already `claim`'s, and answers at once.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`]. [`ErrorKind::Unknown`] leaves it open whether the lock was taken. A claim
    /// whose asks all failed in other ways, or one that was refused and neither waits nor
    /// [listens](Claim::listens), has left nothing and is not released.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError>;

    /// Makes what `claim` holds last for another full [`Claim::ttl`].
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`]: not knowing is an error, knowing that the hold is gone is not.
    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError>;

    /// Removes every trace of `claim`: hold, place, half-finished attempt.
    ///
    /// [`Release::NotHeld`] says that the hold had ended before this call, with its lease if nothing
    /// else ended it (`an_expired_hold_is_not_released`); a driver that sent its request twice and
    /// cannot tell answers [`Release::Freed`].
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`], if something may be left.
    async fn release(&self, claim: &Claim) -> Result<Release, DriverError>;

    /// Resolves when there is news for `claim`, which waits or holds. [`Change::AskAgain`] and
    /// [`Change::Freed`] are hints: they may be early and may be lost, and the engine polls as well.
    /// [`Change::Granted`] and [`Change::Lost`] are believed, so neither is told of what was before
    /// the last answer to an ask (`a_refusal_voids_an_earlier_push`,
    /// `an_ask_after_expiry_is_a_new_grant`). There is never news for a claim that has not asked. For a claim
    /// that holds, this is called also while a renewal is under way.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped and the method called again at will: the next call answers with what
    /// arrived in between.
    async fn changed(&self, claim: &Claim) -> Change {
        _ = claim;
        std::future::pending().await
    }

    /// The part that looks at locks from outside. It is `Some` exactly if it is
    /// [declared](Capabilities::inspection).
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }

    /// The part that tells a quorum which backend this is. A driver without it can be part of a
    /// quorum, but a restart of its backend goes unnoticed there.
    fn node(&self) -> Option<&dyn Node> {
        None
    }

    /// A copy of the descriptor that keeps what `claim` holds, for another process to inherit: from
    /// now on the hold lasts until the last copy is closed, as with flock(1), and
    /// [`release`](Self::release) gives up only this driver's own. `None` if `claim` holds nothing,
    /// or if no descriptor keeps it: only a hold that ends with its
    /// [process](crate::Liveness::Process) has one.
    ///
    /// The copy is closed on `exec`, like all descriptors, unless whoever hands it on changes that
    /// (`a_descriptor_keeps_the_lock`).
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`]. The hold is then as it was.
    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        _ = claim;
        Ok(None)
    }

    /// Ends sessions and connections. The engine has released every claim before this, as far as
    /// the backend let it; what is left ends by itself
    /// (`a_closed_connection_leaves_nothing_for_long`). This may be called again
    /// (`a_connection_may_be_closed_again`), and requests that are made afterwards are answered or
    /// fail (`requests_end_after_closing`). It has 5 seconds, after which it is dropped, wherever
    /// it is: both checks allow no more.
    async fn close(&self) {}
}

/// The answer to [`Driver::try_acquire`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// Another owner holds the lock, or waits ahead of this one.
    Taken(Taken),
}

/// What a claim got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    pub(crate) vouch: Vouch,
    pub(crate) token: Option<FencingToken>,
    pub(crate) replicas: Option<u32>,
}

impl Grant {
    /// A grant without a token, good for a full lease [from the request](Vouch::FromRequest). Where
    /// a session or the process ends holds, [`vouch`](Self::vouch) has to say so.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the fencing token.
    #[must_use]
    pub fn token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Says how many replicas of the backend had acknowledged the grant by the time it was
    /// answered.
    #[must_use]
    pub fn replicas(mut self, acknowledged: u32) -> Self {
        self.replicas = Some(acknowledged);
        self
    }

    /// Says since when and for how long the hold is good.
    #[must_use]
    pub fn vouch(mut self, vouch: Vouch) -> Self {
        self.vouch = vouch;
        self
    }

    /// The fencing token, if the driver has one to give.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token
    }

    /// How many replicas had acknowledged the grant, if the driver waited for any.
    pub fn acknowledged_by(&self) -> Option<u32> {
        self.replicas
    }

    /// Since when and for how long the hold is good.
    pub fn vouched(&self) -> Vouch {
        self.vouch
    }
}

/// What a refused claim learns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub(crate) free_in: Option<Duration>,
    pub(crate) ask_within: Option<Duration>,
    pub(crate) is_told: Option<bool>,
}

impl Taken {
    /// Refused, with nothing known about the holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says how long the holder's lease lasts unless it is renewed. The engine asks again then,
    /// since few backends tell of an expiry.
    #[must_use]
    pub fn free_in(mut self, duration: Duration) -> Self {
        self.free_in = Some(duration);
        self
    }

    /// Says how long a claim without a place may go without asking if it hears nothing: a driver
    /// knows how many others ask as well. The default is a second. Whatever is said, it is never
    /// more than a third of the lease.
    #[must_use]
    pub fn ask_within(mut self, duration: Duration) -> Self {
        self.ask_within = Some(duration);
        self
    }

    /// Says that this claim cannot be told of anything for now, although the driver tells others.
    /// The engine then asks at its own pace, as with a driver that tells of nothing.
    #[must_use]
    pub fn unheard(mut self) -> Self {
        self.is_told = Some(false);
        self
    }

    /// Says that this claim is told of what it waits for, although the driver does not tell every
    /// claim: whoever is in its way belongs to this process, or the claim only
    /// [listens](Claim::listens). The engine then asks no more often than with a driver that
    /// [declares](Capabilities::notification) notification.
    #[must_use]
    pub fn heard(mut self) -> Self {
        self.is_told = Some(true);
        self
    }

    /// How long the holder's lease lasts unless it is renewed, if that is known.
    pub fn remaining(&self) -> Option<Duration> {
        self.free_in
    }

    /// How long a claim without a place may go without asking, if the driver has said.
    pub fn asks_within(&self) -> Option<Duration> {
        self.ask_within
    }

    /// Whether the claim cannot be told of anything for now.
    pub fn is_unheard(&self) -> bool {
        self.is_told == Some(false)
    }

    /// Whether the claim is told although others may not be.
    pub fn is_heard(&self) -> bool {
        self.is_told == Some(true)
    }
}

/// Since when and for how long a hold is good.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vouch {
    /// For the [TTL](Claim::ttl) that the claim asked for, from just before the request that was
    /// answered; for [`Change::Granted`], that request is the last ask answered [`Attempt::Taken`].
    /// This is for backends that keep their leases themselves. It is not for sessions: how long
    /// these last does not depend on what the claim asks for, nor do they begin anew with each
    /// request.
    #[default]
    FromRequest,
    /// For `ttl` from `since`, on the [claim's clock](Claim::clock). This is for drivers whose
    /// lease or session lives apart from the request.
    Lease {
        /// When the request left that last refreshed the lease or session.
        since: Instant,
        /// What the backend granted.
        ttl: Duration,
    },
    /// For as long as this process lives. This is only for drivers whose holds end with the
    /// process.
    WhileAlive,
}

/// The answer to [`Driver::renew`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still held.
    Held(Vouch),
    /// No longer held.
    Lost,
}

/// The answer to [`Driver::release`]: nothing is left of the claim.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim held the lock until now.
    Freed,
    /// The claim did not hold the lock.
    NotHeld,
}

/// The answer to [`Driver::changed`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// To a claim that waits: asking again may give another answer. To a claim that holds: renew
    /// now, to learn whether the hold still stands.
    AskAgain,
    /// The lock was let go, and all who wait for it, in whatever process, were told so. The engine
    /// asks again; once that was in vain a few times, it leaves others the first try, so that a
    /// crowd does not ask all at once.
    Freed,
    /// The lock was handed to this claim.
    Granted(Grant),
    /// The hold, or the place in the queue, is gone.
    Lost,
}

/// A failure inside a driver. The engine adds lock, driver and operation.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct DriverError {
    kind: ErrorKind,
    source: BoxError,
}

impl DriverError {
    /// A failure of this kind, with what the client library said, or a text.
    pub fn new(kind: ErrorKind, source: impl Into<BoxError>) -> Self {
        Self { kind, source: source.into() }
    }

    /// The same failure, of a request that changes nothing: not answered is as good as not sent, so
    /// that [`ErrorKind::Unknown`] becomes [`ErrorKind::Unreachable`].
    #[must_use]
    pub fn without_effect(self) -> Self {
        match self.kind {
            ErrorKind::Unknown => Self { kind: ErrorKind::Unreachable, ..self },
            _ => self,
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the client library said.
    pub fn into_source(self) -> BoxError {
        self.source
    }
}

/// What a failed request has done, and whether to ask again.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request was sent and not answered: it may have been carried out, or may still be.
    Unknown,
    /// The request was certainly not carried out, and asking again may work: no connection, or a
    /// server that is still loading.
    Unreachable,
    /// The backend denies access: a wrong password, a missing right.
    Denied,
    /// The backend has no room: memory, lock table, quota, or an exhausted token.
    Capacity,
    /// The backend cannot be used as it is set up: a replica, an unknown layout version.
    Misconfigured,
    /// Something else lives where the lock should be.
    Foreign,
    /// The driver does not support this.
    Unsupported,
}

impl ErrorKind {
    /// Whether the same request may succeed later without anybody doing anything about it.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unknown | Self::Unreachable)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "sent, but not answered",
            Self::Unreachable => "the backend cannot be reached",
            Self::Denied => "the backend refuses",
            Self::Capacity => "the backend has no room",
            Self::Misconfigured => "the backend cannot be used as it is set up",
            Self::Foreign => "something else lives where the lock should be",
            Self::Unsupported => "the driver does not support this",
        })
    }
}
