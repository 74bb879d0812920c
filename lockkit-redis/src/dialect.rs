use std::str::FromStr;

use lockkit_core::{Capabilities, Fairness, Liveness};

/// What the Redis driver promises.
pub const CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fairness(Fairness::OnRequest)
    .fencing()
    .notification()
    .inspection()
    .ttl(Capabilities::MIN_TTL, Capabilities::MAX_TTL);

/// What the Redis driver promises with `dialect=plain`. Other software that takes the lock leaves
/// no place in a queue, respects none, and tells nobody of a release.
pub const PLAIN_CAPABILITIES: Capabilities = Capabilities::new(Liveness::Lease)
    .fencing()
    .inspection()
    .ttl(Capabilities::MIN_TTL, Capabilities::MAX_TTL);

/// Whose locks they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Those of lockkit alone.
    #[default]
    Lockkit,
    /// Those of any software that sets the key if it is missing, with an expiry.
    Plain,
}

impl Dialect {
    pub(crate) fn capabilities(self) -> Capabilities {
        match self {
            Self::Lockkit => CAPABILITIES,
            Self::Plain => PLAIN_CAPABILITIES,
        }
    }
}

impl FromStr for Dialect {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lockkit" => Ok(Self::Lockkit),
            "plain" => Ok(Self::Plain),
            _ => Err("known are `lockkit` and `plain`"),
        }
    }
}
