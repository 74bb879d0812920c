//! Who holds a lock, who waits for it, and whether the backend is fit to keep it.
//!
//! What a driver reports is how things stood when the backend answered. Times are lengths on the
//! backend's clock; nobody's wall clock is read.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{DriverError, OwnerId};
use crate::{FencingToken, Label, LockName, Namespace};

/// The part of a [`Driver`](crate::driver::Driver) that looks at locks from outside.
///
/// Each request ends by itself, as the driver's other requests do. Except for
/// [`break_hold`](Self::break_hold), the requests here only read: they change nothing about a hold,
/// a place or a request.
///
/// # Contract
///
/// Each rule is followed by the name of the check in `lockkit-conformance` that enforces it.
///
/// - A hold is reported with its owner, label and token, from its grant (`a_hold_is_seen`) to its
///   end (`a_released_lock_is_seen_free`, `a_lease_that_ran_out_is_seen_free`). Labels are kept
///   byte for byte (`labels_are_kept_as_given`). A renewal moves the end of a lease, but not the
///   time since which the lock is held (`times_of_a_hold_are_right`).
/// - Places are reported in the order in which they will be served (`places_are_seen_in_order`),
///   with the time since their first ask (`times_of_a_place_are_right`), and for as long as they
///   last (`a_place_that_ran_out_is_not_seen`).
/// - The list has every held lock of the namespace, and no other, under its original name and as
///   [`look`](Self::look) reports it, sorted by name (`held_locks_are_listed`).
/// - Looking changes nothing (`looking_changes_nothing`, `looking_keeps_nothing_alive`), and makes
///   no request fail (`looking_disturbs_nobody`).
/// - A request here may be dropped at any point, when its caller goes away. The next requests of the
///   connection get their own answers all the same (`a_look_may_be_dropped_anywhere`).
/// - A broken hold is over at once: its owner can neither renew nor release it, the next grant has
///   a higher token, and waiters are served and told as they are by a release
///   (`a_broken_hold_is_over`, `a_broken_hold_frees_the_lock_for_waiters`,
///   `a_break_wakes_who_listens`).
/// - A break for one owner touches nobody else's hold, whatever happens meanwhile
///   (`only_the_named_owner_is_broken`, `a_break_for_an_owner_is_one_step`).
/// - Names are text (`an_inspected_name_is_never_code`).
/// - A diagnosis of a sound backend has no error-grade finding (`a_sound_backend_has_no_errors`).
#[async_trait]
pub trait Inspect: Send + Sync {
    /// How the lock stands.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`](crate::driver::ErrorKind) except `Unknown`.
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError>;

    /// Every held lock of the namespace, sorted by name.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`](crate::driver::ErrorKind) except `Unknown`.
    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError>;

    /// Ends the hold and returns its holder, or `None` if there was no such hold. If an `owner` is
    /// named, only a hold of that owner is ended.
    ///
    /// The holder learns of this at its next renewal at the latest.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`](crate::driver::ErrorKind). `Unknown` leaves it open whether the hold was
    /// broken.
    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError>;

    /// Looks at how the backend is set up: rights, durability, eviction, clock, version. What
    /// cannot be found out is reported as a finding, too.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`](crate::driver::ErrorKind) except `Unknown`, if nothing could be found out.
    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError>;
}

/// How a lock stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    name: LockName,
    holder: Option<Holder>,
    waiters: Vec<Waiter>,
    listeners: Option<u64>,
}

impl LockStatus {
    /// A lock that nobody holds or waits for.
    pub fn free(name: LockName) -> Self {
        Self { name, holder: None, waiters: Vec::new(), listeners: None }
    }

    /// Adds who holds it.
    #[must_use]
    pub fn held_by(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// Adds the waiters that have a place in the queue, in the order in which they will be served.
    #[must_use]
    pub fn waited_for_by(mut self, waiters: Vec<Waiter>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Adds how many connections to the backend listen for its release.
    #[must_use]
    pub fn listened_to_by(mut self, connections: u64) -> Self {
        self.listeners = Some(connections);
        self
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Who holds it; `None` if it is free.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The waiters that have a place in a queue for it, in the order in which they will be served.
    /// Waiters without a place leave no trace with their name on it: those that did not ask for
    /// [order](crate::Fairness::OnRequest), for the most part. Where a backend needs places to tell
    /// its waiters, as etcd and ZooKeeper do, a few of these in each process have one, too.
    pub fn waiters(&self) -> &[Waiter] {
        &self.waiters
    }

    /// How many connections to the backend listen for its release, where the backend can tell. That
    /// is about as many as there are lockers that wait, with or without a place.
    pub fn listeners(&self) -> Option<u64> {
        self.listeners
    }
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    owner: OwnerId,
    label: Option<Label>,
    token: Option<FencingToken>,
    held_for: Option<Duration>,
    remaining: Option<Duration>,
}

impl Holder {
    /// A holder of whom only the id is known.
    pub fn new(owner: OwnerId) -> Self {
        Self { owner, label: None, token: None, held_for: None, remaining: None }
    }

    /// Adds what the holder calls itself.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// As [`with_label`](Self::with_label), for the text that the backend has. A label decides
    /// nothing, so a text that is none is left out, and hides nobody.
    #[must_use]
    pub fn labelled(mut self, text: impl AsRef<[u8]>) -> Self {
        self.label = Label::read(text);
        self
    }

    /// Adds the fencing token of the hold.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds how long ago the lock was granted.
    #[must_use]
    pub fn with_held_for(mut self, duration: Duration) -> Self {
        self.held_for = Some(duration);
        self
    }

    /// Adds how long the lease lasts unless it is renewed.
    #[must_use]
    pub fn with_remaining(mut self, duration: Duration) -> Self {
        self.remaining = Some(duration);
        self
    }

    /// The id under which the backend knows the holder, which is what
    /// [`Hold::owner`](crate::Hold::owner) returns.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What the holder calls itself: host and process id, unless its locker was told otherwise.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// The fencing token of the hold, if it has one.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token
    }

    /// How long ago the lock was granted.
    pub fn held_for(&self) -> Option<Duration> {
        self.held_for
    }

    /// How long the lease lasts unless it is renewed; `None` if the hold is not a lease.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// Who has a place in the queue for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    owner: OwnerId,
    label: Option<Label>,
    waiting_for: Option<Duration>,
}

impl Waiter {
    /// A waiter of whom only the id is known.
    pub fn new(owner: OwnerId) -> Self {
        Self { owner, label: None, waiting_for: None }
    }

    /// Adds what the waiter calls itself.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// As [`with_label`](Self::with_label), for the text that the backend has. A text that is no
    /// label is left out, and hides nobody.
    #[must_use]
    pub fn labelled(mut self, text: impl AsRef<[u8]>) -> Self {
        self.label = Label::read(text);
        self
    }

    /// Adds how long ago the waiter came.
    #[must_use]
    pub fn with_waiting_for(mut self, duration: Duration) -> Self {
        self.waiting_for = Some(duration);
        self
    }

    /// The id under which the backend knows the waiter.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What the waiter calls itself.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// How long ago the waiter came.
    pub fn waiting_for(&self) -> Option<Duration> {
        self.waiting_for
    }
}

/// One finding about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    grade: Grade,
    topic: &'static str,
    finding: String,
    advice: Option<String>,
}

impl Diagnosis {
    /// Something is as it should be.
    pub fn good(topic: &'static str, finding: impl Into<String>) -> Self {
        Self { grade: Grade::Good, topic, finding: finding.into(), advice: None }
    }

    /// Something that one should know, with what to do about it.
    pub fn warning(
        topic: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { grade: Grade::Warning, topic, finding: finding.into(), advice }
    }

    /// Locks do not work, or do not keep what they promise; with what to do about it.
    pub fn error(
        topic: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Error, ..Self::warning(topic, finding, advice) }
    }

    /// How bad it is.
    pub fn grade(&self) -> Grade {
        self.grade
    }

    /// What it is about, in a word: `rights`, `persistence`, `eviction`, `clock`, `version`,
    /// `file system`, ...
    pub fn topic(&self) -> &'static str {
        self.topic
    }

    /// What was found.
    pub fn finding(&self) -> &str {
        &self.finding
    }

    /// What to do about it; `None` if there is nothing to do.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}

/// How bad a finding is, the best first.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Locks work, but something weakens a promise or will go wrong in bad weather.
    Warning,
    /// Locks do not work, or do not keep what they promise.
    Error,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}
