use std::time::Duration;

use lockkit_core::driver::CallLimit;
use lockkit_core::{Capabilities, Lease, Parameter, Parameters, Result};

pub(crate) const HOLD: Parameter = Parameter::new(
    "hold",
    "what a hold is kept by: `lease`, a row, or `session`, a lock of the server's for a connection",
    "lease",
);

pub(crate) const WAITING: Parameter = Parameter::new(
    "waiting_sessions",
    "how many more sessions may wait for a lock in the server's own queue, and hold it then, 0 to \
     100; others ask from time to time",
    "4",
);

/// What the parameters of a URL with `hold=session` say, whatever the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) call_limit: CallLimit,
    pub(crate) ttl: Duration,
    pub(crate) keys: Keys,
    /// How many more sessions may wait.
    pub(crate) waiting: usize,
}

/// What the server knows a lock by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A hash of namespace and name.
    Hashed,
    /// The name as it is, so that other software can lock it too.
    Exact,
}

impl Hold {
    pub(crate) fn from_parameters(parameters: &Parameters<'_>, can: &Capabilities) -> Result<Self> {
        check(parameters, "session")?;
        let ttl = parameters.duration("ttl")?.unwrap_or(Lease::default().ttl());
        if ttl < can.min_ttl || ttl > can.max_ttl {
            let reason =
                format!("a session can be kept for {:?} to {:?}", can.min_ttl, can.max_ttl);
            return Err(parameters.bad("ttl", reason));
        }
        let keys = match parameters.text("keys") {
            None | Some("hashed") => Keys::Hashed,
            Some("exact") => Keys::Exact,
            Some(_) => return Err(parameters.bad("keys", "must be `hashed` or `exact`")),
        };
        let waiting = parameters.parsed("waiting_sessions")?.unwrap_or(4);
        if waiting > 100 {
            return Err(parameters.bad("waiting_sessions", "must be a number from 0 to 100"));
        }
        Ok(Self { call_limit: parameters.call_limit()?, ttl, keys, waiting })
    }
}

/// Checks that the driver that was asked to connect is the one that the URL means.
pub(crate) fn check(parameters: &Parameters<'_>, ours: &str) -> Result<()> {
    match parameters.text("hold").unwrap_or("lease") {
        hold if hold == ours => Ok(()),
        "lease" | "session" => Err(parameters
            .bad("hold", format!("asks for the other driver, as this one keeps `{ours}`"))),
        _ => Err(parameters.bad("hold", "must be `lease` or `session`")),
    }
}
