use std::time::Duration;

use lockkit_core::{BackendUrl, Capabilities, Parameter, Result};

/// The parameters of a Redlock URL, besides the [common ones](lockkit_core::COMMON_PARAMETERS) and
/// those of its nodes.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "max_ttl",
        "the longest lease; a restarted node sits out for a second more",
        "60s",
    ),
    Parameter::new(
        "node_timeout",
        "how long to wait for a node, such as `20ms`",
        "a twentieth of the lease, at most 50ms",
    ),
    Parameter::new(
        "delayed_restart",
        "`false` lets a node vote at once that has lost its locks in a restart: then two may hold one",
        "true",
    ),
    Parameter::new(
        "allow",
        "what is refused otherwise: `even` numbers of nodes, a `single` one, `duplicates`; commas between",
        "nothing",
    ),
];

/// How the nodes are treated.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) max_ttl: Duration,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) delayed_restart: bool,
    pub(crate) allows: Vec<Odd>,
}

/// What is refused unless it is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// One node more than is of use: an even number needs as many votes as the next odd one.
    Even,
    /// One node: no majority, only one server in a roundabout way.
    Single,
    /// One server that counts as several nodes.
    Duplicates,
}

impl Odd {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "even" => Self::Even,
            "single" => Self::Single,
            "duplicates" => Self::Duplicates,
            _ => return None,
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        let max_ttl = Duration::from_secs(60);
        Self { max_ttl, node_timeout: None, delayed_restart: true, allows: Vec::new() }
    }
}

impl Settings {
    /// What the parameters of `url` say. `known` are all that it may have besides the common ones:
    /// [ours](PARAMETERS) and those of its nodes.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](lockkit_core::Error::Config) for an unknown parameter or a value that
    /// cannot be used.
    pub fn from_url(url: &BackendUrl, known: &'static [Parameter]) -> Result<Self> {
        let parameters = url.parameters(known)?;
        let mut settings = Self::default();
        if let Some(max_ttl) = parameters.duration("max_ttl")? {
            if !(Capabilities::MIN_TTL..=Capabilities::MAX_TTL).contains(&max_ttl) {
                return Err(parameters.bad("max_ttl", "must be within 50ms to 24h"));
            }
            settings.max_ttl = max_ttl;
        }
        if let Some(limit) = parameters.duration("node_timeout")? {
            if limit.is_zero() || limit > Duration::from_secs(10) {
                return Err(
                    parameters.bad("node_timeout", "must be more than zero and at most 10s")
                );
            }
            settings.node_timeout = Some(limit);
        }
        if let Some(delays) = parameters.parsed("delayed_restart")? {
            settings.delayed_restart = delays;
        }
        for word in parameters.text("allow").iter().flat_map(|words| words.split(',')) {
            let odd = Odd::named(word).ok_or_else(|| {
                parameters.bad("allow", "must be of `even`, `single`, `duplicates`")
            })?;
            settings.allows.push(odd);
        }
        Ok(settings)
    }

    pub(crate) fn allows(&self, odd: Odd) -> bool {
        self.allows.contains(&odd)
    }

    /// How long to wait for a node before going on without it.
    pub(crate) fn patience(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or((ttl / 20).min(Duration::from_millis(50)))
    }

    /// For how long a node that may have forgotten its locks gives no vote.
    pub(crate) fn silence_after_restart(&self) -> Duration {
        match self.delayed_restart {
            true => self.max_ttl + Duration::from_secs(1),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{PARAMETERS, Settings};

    fn settings(parameters: &str) -> lockkit_core::Result<Settings> {
        Settings::from_url(&format!("redlock://a,b,c?{parameters}").parse().unwrap(), PARAMETERS)
    }

    #[test]
    fn parameters_say_how_nodes_are_treated() {
        let settings =
            settings("max_ttl=1s&node_timeout=7ms&ttl=500ms&allow=even,duplicates").unwrap();
        assert_eq!(settings.patience(Duration::from_secs(1)), Duration::from_millis(7));
        assert_eq!(settings.silence_after_restart(), Duration::from_secs(2));
        assert_eq!(settings.allows.len(), 2);
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (parameters, reason) in [
            ("max_ttl=1ms", "50ms to 24h"),
            ("max_ttl=long", "max_ttl"),
            ("node_timeout=0s", "more than zero"),
            ("node_timeout=1h", "at most 10s"),
            ("delayed_restart=perhaps", "delayed_restart"),
            ("allow=anything", "`single`"),
            ("allow=replicas", "must be of `even`, `single`, `duplicates`"),
            ("fast=1", "unknown"),
        ] {
            let error = settings(parameters).unwrap_err().to_string();
            assert!(error.contains(reason), "{parameters}: {error}");
        }
    }
}
