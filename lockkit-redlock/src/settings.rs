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
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::{Locker, memory::MemoryDriver};
/// use lockkit_redlock::{RedlockDriver, Settings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// let (longest, patience) = (Duration::from_secs(20), Duration::from_millis(100));
/// let driver = RedlockDriver::builder()
///     .settings(Settings::default().max_ttl(longest).node_timeout(patience))
///     .node("a", MemoryDriver::new())
///     .node("b", MemoryDriver::new())
///     .node("c", MemoryDriver::new());
/// let locker = Locker::new(driver.connect().await?);
/// assert_eq!(locker.capabilities().max_ttl, longest);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub(crate) max_ttl: Duration,
    node_timeout: Option<Duration>,
    pub(crate) delayed_restart: bool,
    allows: Vec<Allow>,
}

/// What is refused unless it is allowed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// An even number of nodes, which needs as many votes as the next odd one.
    Even,
    /// One node: no majority, only one server in a roundabout way.
    Single,
    /// One server that counts as several nodes.
    Duplicates,
}

impl Allow {
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
            settings = settings.max_ttl(max_ttl);
        }
        if let Some(limit) = parameters.duration("node_timeout")? {
            settings = settings.node_timeout(limit);
        }
        if let Some(delays) = parameters.parsed("delayed_restart")? {
            settings = settings.delayed_restart(delays);
        }
        for word in parameters.text("allow").iter().flat_map(|words| words.split(',')) {
            settings = settings.allow(Allow::named(word).ok_or_else(|| {
                parameters.bad("allow", "must be of `even`, `single`, `duplicates`")
            })?);
        }
        match settings.out_of_bounds() {
            Some((name, reason)) => Err(parameters.bad(name, reason)),
            None => Ok(settings),
        }
    }

    /// Sets the longest lease: 50 ms to 24 h, and 60 s if it is not set. A node that was restarted
    /// sits out for a second more.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// Sets how long to wait for a node before going on without it: more than zero and at most
    /// 10 s, and a twentieth of the lease, at most 50 ms, if it is not set.
    #[must_use]
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// Sets whether a node sits out that may have lost its locks in a restart, as it does if this
    /// is not set. Otherwise it votes at once, and then two may hold one lock.
    #[must_use]
    pub fn delayed_restart(mut self, delays: bool) -> Self {
        self.delayed_restart = delays;
        self
    }

    /// Allows something that is refused otherwise, besides what is allowed already.
    #[must_use]
    pub fn allow(mut self, what: Allow) -> Self {
        self.allows.push(what);
        self
    }

    /// The setting that cannot be used, if there is one, and what it must be.
    pub(crate) fn out_of_bounds(&self) -> Option<(&'static str, &'static str)> {
        let is_usable = |limit| limit > Duration::ZERO && limit <= Duration::from_secs(10);
        if !(Capabilities::MIN_TTL..=Capabilities::MAX_TTL).contains(&self.max_ttl) {
            return Some(("max_ttl", "must be within 50ms to 24h"));
        }
        if !self.node_timeout.is_none_or(is_usable) {
            return Some(("node_timeout", "must be more than zero and at most 10s"));
        }
        None
    }

    pub(crate) fn allows(&self, what: Allow) -> bool {
        self.allows.contains(&what)
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

    use super::{Allow, PARAMETERS, Settings};

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
    fn code_says_the_same() {
        let in_code = Settings::default()
            .max_ttl(Duration::from_secs(1))
            .node_timeout(Duration::from_millis(7))
            .delayed_restart(false)
            .allow(Allow::Even)
            .allow(Allow::Single);
        let in_url = "max_ttl=1s&node_timeout=7ms&delayed_restart=false&allow=even,single";
        assert_eq!(in_code, settings(in_url).unwrap());
        assert_eq!(Settings::default(), settings("").unwrap());
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
