use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

use crate::clock::{Clock, Instant};
use crate::driver::LONGEST_CALL;
use crate::{Label, LockName, hex};

/// One acquisition, as drivers see it: who wants which lock, and how.
///
/// The engine makes the claim before the first byte is sent, and gives the same one to every
/// request of the acquisition.
#[derive(Clone, Debug)]
pub struct Claim {
    name: LockName,
    owner: OwnerId,
    ttl: Duration,
    waits: bool,
    fair: bool,
    listens: bool,
    label: Label,
    clock: Clock,
}

impl Claim {
    /// A claim by a new owner, who does not wait.
    pub fn new(name: LockName, ttl: Duration) -> Self {
        Self::by(Label::of_this_process(), Clock::system(), name, ttl)
    }

    /// A claim by a new owner who is called `label`, on `clock`.
    pub(crate) fn by(label: Label, clock: Clock, name: LockName, ttl: Duration) -> Self {
        let owner = OwnerId::random();
        Self { name, owner, ttl, waits: false, fair: false, listens: false, label, clock }
    }

    /// Makes it a claim that waits: a refused ask may leave a place in a queue.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Makes it a claim that waits and is to be served first come, first served.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self.waiting()
    }

    /// The same claim, except that it does not wait: with this a quorum asks nodes that would
    /// otherwise hand it a lock of which others have a part.
    #[must_use]
    pub fn not_waiting(mut self) -> Self {
        (self.waits, self.fair) = (false, false);
        self
    }

    /// The same claim, except that it does not wait, but may be told of a release.
    #[must_use]
    pub fn listening(mut self) -> Self {
        self.listens = true;
        self.not_waiting()
    }

    /// The same claim, asking for another lease.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The same claim, by somebody with another label.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = label;
        self
    }

    /// The same claim on another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The owner on whose behalf the claim is made, unique to this acquisition.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// How long the hold is to last between renewals.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether a refused ask may leave a place in a queue.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the claim is to be served first come, first served.
    pub fn is_fair(&self) -> bool {
        self.fair
    }

    /// Whether the claim is to be told of a release although it does not wait: it has no place and
    /// is handed nothing. A driver need not tell it; one that does refuses the claim with
    /// [`Taken::heard`](crate::driver::Taken::heard).
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// Whether the claim, once refused, is to be told of a release: it waits or
    /// [listens](Self::listens).
    pub fn is_to_be_told(&self) -> bool {
        self.waits || self.listens
    }

    /// What the claimant is called, for [inspection](crate::driver::Inspect).
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// How long a driver lets one request take unless it is configured otherwise: a fifth of the
    /// lease, at most 3 seconds.
    pub fn call_limit(&self) -> Duration {
        (self.ttl / 5).min(LONGEST_CALL)
    }

    /// The clock on which [`Vouch`](crate::driver::Vouch) counts.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The time on that clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// Names one acquisition: 128 bits from the operating system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerId([u8; 16]);

impl OwnerId {
    /// An id that nobody has had before and nobody can guess.
    ///
    /// # Panics
    ///
    /// If the operating system has no random numbers to give, which means it is broken.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        Self(bytes)
    }
}

/// Without the length, which an array is hashed with: all have the same.
impl Hash for OwnerId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// 32 lower-case hexadecimal digits.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 32];
        for (two, byte) in text.chunks_exact_mut(2).zip(self.0) {
            two.copy_from_slice(&hex::digits(byte));
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OwnerId {
    type Err = ParseOwnerError;

    fn from_str(text: &str) -> Result<Self, ParseOwnerError> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(ParseOwnerError(()));
        }
        let id = u128::from_str_radix(text, 16).map_err(|_| ParseOwnerError(()))?;
        Ok(Self(id.to_be_bytes()))
    }
}

/// The text is not an owner id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an owner id has 32 lower-case hexadecimal digits")]
pub struct ParseOwnerError(());

#[cfg(test)]
mod tests {
    use super::OwnerId;

    #[test]
    fn an_owner_id_survives_its_text() {
        let id = OwnerId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(id, OwnerId::random());
        for text in
            ["", "1", "0X000000000000000000000000000000", "+0000000000000000000000000000001"]
        {
            assert!(text.parse::<OwnerId>().is_err(), "{text:?} was accepted");
        }
    }
}
