use std::time::Duration;

use lockkit_core::driver::CALL_LIMIT;
use lockkit_core::{BackendUrl, Parameter, Result};

use crate::endpoint::Endpoint;

/// The parameters of a `redis:` URL, beside the common ones.
pub const PARAMETERS: &[Parameter] = &[CALL_LIMIT];

const DEFAULT_PORT: u16 = 6379;
/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) endpoint: Endpoint,
    pub(crate) call_limit: Option<Duration>,
}

impl Config {
    pub(crate) fn from_url(url: &BackendUrl) -> Result<Self> {
        if url.scheme() != "redis" {
            return Err(url.error("the scheme is not `redis`"));
        }
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        let [host] = url.hosts() else {
            return Err(url.error("one host is needed, as in `redis://localhost`"));
        };
        let database = match url.path().trim_start_matches('/') {
            "" => 0,
            number => number.parse::<u16>().map_err(|_| {
                url.error("the path is the number of a database, as in `redis://localhost/0`")
            })?,
        };
        let mut greeting = redis::RedisConnectionInfo::default()
            .set_db(database.into())
            .set_lib_name("lockkit", env!("CARGO_PKG_VERSION"));
        match (url.user(), url.password()) {
            (Some(_), None) => return Err(url.error("a user needs a password")),
            (user, Some(password)) => {
                greeting = greeting.set_password(password);
                if let Some(user) = user {
                    greeting = greeting.set_username(user);
                }
            }
            (None, None) => (),
        }
        let port = host.port().unwrap_or(DEFAULT_PORT);
        Ok(Self { endpoint: Endpoint::new(host.name(), port, greeting), call_limit })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Config;

    fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap())
    }

    #[test]
    fn a_url_says_where_and_how() {
        let plain = config("redis://localhost").unwrap();
        assert_eq!(plain.endpoint.to_string(), "localhost:6379/0");
        assert_eq!(plain.call_limit, None);
        let full = config("redis://me:pw@[::1]:7000/3?call_limit=2s&ttl=10s").unwrap();
        assert_eq!(full.endpoint.to_string(), "[::1]:7000/3");
        assert_eq!(full.call_limit, Some(Duration::from_secs(2)));
        assert!(!format!("{full:?}").contains("pw"), "{full:?}");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("rediss://h", "scheme"),
            ("redis://a,b", "one host"),
            ("redis:", "one host"),
            ("redis://h/zero", "number of a database"),
            ("redis://h/-1", "number of a database"),
            ("redis://me@h", "password"),
            ("redis://h?call_limit=0s", "at most 30s"),
            ("redis://h?call_limit=31s", "at most 30s"),
            ("redis://h?fast=1", "max_hold, call_limit"),
        ] {
            let error = config(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
