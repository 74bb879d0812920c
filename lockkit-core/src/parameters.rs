//! The parameters of a URL: which there are, and what they say.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::driver::CallLimit;
use crate::{BackendUrl, Capabilities, Error, Label, Namespace, Result};

/// A parameter that a driver knows, for the URL parser and the documentation alike.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in a URL.
    pub name: &'static str,
    /// What it does, as a phrase with units.
    pub meaning: &'static str,
    /// What applies without it.
    pub default: &'static str,
}

impl Parameter {
    /// A parameter.
    pub const fn new(name: &'static str, meaning: &'static str, default: &'static str) -> Self {
        Self { name, meaning, default }
    }
}

/// The parameters that every driver's URL takes.
pub const COMMON_PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "namespace",
        "keeps the locks of one application apart from others; 1 to 64 of `A-Z a-z 0-9 . _ -`",
        "lockkit",
    ),
    Parameter::new(
        "ttl",
        "how long a hold outlives a dead holder, such as `500ms` or `1m`; at most 24h",
        "30s",
    ),
    LABEL,
    Parameter::new("max_hold", "how long a hold may last in all, renewals included", "no limit"),
];

pub(crate) const LABEL: Parameter = Parameter::new(
    "label",
    "what holders and waiters are called in inspection; up to 128 bytes",
    "host and process id",
);

/// How long one request may take: for the tables of those drivers that let their users set it.
pub const CALL_LIMIT: Parameter = Parameter::new(
    "call_limit",
    "how long one request may take, such as `500ms`; at most 30s",
    "a fifth of `ttl`, at most 3s",
);

/// The checked parameters of a URL.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    url: &'a BackendUrl,
}

impl<'a> Parameters<'a> {
    pub(crate) fn of(url: &'a BackendUrl) -> Self {
        Self { url }
    }

    /// The value as text.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.url.parameter(name)
    }

    /// The value, parsed as the type that is asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be parsed.
    pub fn parsed<T: FromStr<Err: fmt::Display>>(&self, name: &str) -> Result<Option<T>> {
        self.text(name).map(str::parse).transpose().map_err(|error| self.bad(name, error))
    }

    /// The value as a duration, such as `500ms` or `1m 30s`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it is not a duration.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        let parse = |text| humantime::parse_duration(text).map_err(|error| self.bad(name, error));
        self.text(name).map(parse).transpose()
    }

    /// The value of [`CALL_LIMIT`](crate::driver::CALL_LIMIT), if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it is not a duration, is zero, or is more than 30 seconds.
    pub fn call_limit(&self) -> Result<CallLimit> {
        const LONGEST: Duration = Duration::from_secs(30);
        match self.duration(CALL_LIMIT.name)? {
            Some(limit) if limit.is_zero() || limit > LONGEST => {
                Err(self.bad(CALL_LIMIT.name, "must be more than zero and at most 30s"))
            }
            Some(limit) => Ok(CallLimit::new(limit)),
            None => Ok(CallLimit::default()),
        }
    }

    /// An error that says what is wrong with the value of a parameter.
    pub fn bad(&self, name: &str, reason: impl fmt::Display) -> Error {
        self.url.error(format!("parameter `{name}`: {reason}"))
    }
}

/// What the [`COMMON_PARAMETERS`] say about a locker.
pub(crate) struct Common {
    pub(crate) namespace: Option<Namespace>,
    pub(crate) label: Option<Label>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Common {
    pub(crate) fn of(parameters: &Parameters<'_>) -> Result<Self> {
        let namespace = |text| Namespace::new(text).map_err(|e| parameters.bad("namespace", e));
        let (ttl, max_hold) = (parameters.duration("ttl")?, parameters.duration("max_hold")?);
        // A driver may want it shorter or longer than that, and says so once it is connected.
        let (least, most) = (Capabilities::MIN_TTL, Capabilities::MAX_TTL);
        if ttl.is_some_and(|ttl| !(least..=most).contains(&ttl)) {
            return Err(parameters.bad("ttl", format!("must be within {least:?} to {most:?}")));
        }
        if max_hold.is_some_and(|longest| longest.is_zero()) {
            return Err(parameters.bad("max_hold", "must be more than zero"));
        }
        Ok(Self {
            namespace: parameters.text("namespace").map(namespace).transpose()?,
            label: parameters.parsed(LABEL.name)?,
            ttl,
            max_hold,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CALL_LIMIT, CallLimit, Parameter};
    use crate::BackendUrl;

    fn url(text: &str) -> BackendUrl {
        text.parse().unwrap()
    }

    #[test]
    fn unknown_and_repeated_parameters_are_answered_with_the_known_ones() {
        const KNOWN: &[Parameter] = &[Parameter::new("fair", "serves in order", "no")];
        for (text, problem) in
            [("m:?tll=1s", "`tll` is unknown"), ("m:?ttl=1s&ttl=2s", "`ttl` is given twice")]
        {
            let error = url(text).parameters(KNOWN).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert!(error.contains("namespace, ttl, label, max_hold, fair"), "{error}");
        }
        assert!(url("m:?fair=1").parameters(KNOWN).is_ok());
        assert!(url("m:?fair=soon").parameters(KNOWN).unwrap().duration("fair").is_err());
    }

    #[test]
    fn a_call_takes_some_time_and_at_most_half_a_minute() {
        const KNOWN: &[Parameter] = &[CALL_LIMIT];
        let limit = |text: &str| url(text).parameters(KNOWN).unwrap().call_limit();
        assert_eq!(limit("m:").unwrap(), CallLimit::default());
        assert_eq!(limit("m:?call_limit=30s").unwrap(), CallLimit::new(Duration::from_secs(30)));
        for bad in ["0s", "31s", "soon", ""] {
            let error = limit(&format!("m:?call_limit={bad}")).unwrap_err().to_string();
            assert!(error.contains("call_limit"), "{error}");
        }
    }

    /// Whichever driver is asked, so before it dials.
    #[test]
    fn what_all_take_is_checked_with_the_rest() {
        for bad in [
            "ttl=soon",
            "ttl=0s",
            "ttl=25h",
            "max_hold=1",
            "max_hold=0s",
            "namespace=a/b",
            "label=%0A",
        ] {
            let error = url(&format!("m:?{bad}")).parameters(&[]).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{error}");
        }
    }
}
