use lockkit_core::driver::CallLimit;
use lockkit_core::{Parameter, Parameters, Result};

use crate::session::hold;

pub(crate) const CONNECTIONS: Parameter = Parameter::new(
    "connections",
    "how many connections to use for requests, 2 to 100; one more where somebody waits",
    "4",
);

/// What the parameters of a URL with `hold=lease` say, whatever the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leases {
    pub(crate) call_limit: CallLimit,
    pub(crate) connections: usize,
    pub(crate) observe: bool,
}

impl Leases {
    pub(crate) fn from_parameters(parameters: &Parameters<'_>) -> Result<Self> {
        hold::check(parameters, "lease")?;
        let call_limit = parameters.call_limit()?;
        let connections = parameters.parsed("connections")?.unwrap_or(4);
        if !(2..=100).contains(&connections) {
            return Err(parameters.bad("connections", "must be a number from 2 to 100"));
        }
        let observe = parameters.parsed("observe")?.unwrap_or(false);
        Ok(Self { call_limit, connections, observe })
    }
}
