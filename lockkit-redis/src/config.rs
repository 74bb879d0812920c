use std::path::PathBuf;
use std::time::Duration;

use lockkit_core::driver::CALL_LIMIT;
use lockkit_core::{BackendUrl, Parameter, Parameters, Result};

use crate::dialect::Dialect;
use crate::endpoint::{Address, Endpoint};
use crate::tls::{Files, Tls};

/// The parameters of a `redis:` URL, beside the [common ones](lockkit_core::COMMON).
pub const PARAMETERS: &[Parameter] = &[
    CALL_LIMIT,
    Parameter::new(
        "dialect",
        "whose keys to share locks with: `lockkit`, or `plain` for `SET NX` as most others do it",
        "lockkit",
    ),
    Parameter::new("db", "the number of the database, where the path does not tell it", "0"),
    Parameter::new(
        "cacert",
        "file with the certificates to trust; for `rediss:`",
        "those that the system trusts",
    ),
    Parameter::new("cert", "file with the client's certificate; for `rediss:`", "none"),
    Parameter::new("key", "file with the key to it; for `rediss:`", "none"),
];

const DEFAULT_PORT: u16 = 6379;

/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) endpoint: Endpoint,
    pub(crate) call_limit: Option<Duration>,
    pub(crate) dialect: Dialect,
}

impl Config {
    pub(crate) async fn from_url(url: &BackendUrl) -> Result<Self> {
        let (is_socket, with_tls) = match url.scheme() {
            "redis" => (false, false),
            "rediss" => (false, true),
            "redis+unix" | "unix" => (true, false),
            _ => {
                return Err(url.error(
                    "the scheme of Redis is `redis`, `rediss` with TLS, or `redis+unix` for a socket",
                ));
            }
        };
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        let dialect = parameters.parsed("dialect")?.unwrap_or_default();
        let files = files(url, &parameters, with_tls)?;
        let (address, database) = match is_socket {
            true => (socket(url)?, None),
            false => {
                let [host] = url.hosts() else {
                    return Err(url.error("one host is needed, as in `redis://localhost`"));
                };
                let tls = if with_tls { Some(tls(url, files).await?) } else { None };
                let port = host.port().unwrap_or(DEFAULT_PORT);
                (Address::Network { host: host.name().into(), port, tls }, database(url)?)
            }
        };
        let database = match (database, parameters.parsed::<u16>("db")?) {
            (Some(_), Some(_)) => {
                return Err(parameters.bad("db", "the path tells the number already"));
            }
            (path, parameter) => path.or(parameter).unwrap_or(0),
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
        Ok(Self { endpoint: Endpoint::new(address, greeting), call_limit, dialect })
    }
}

fn database(url: &BackendUrl) -> Result<Option<u16>> {
    match url.path().trim_start_matches('/') {
        "" => Ok(None),
        number => number.parse().map(Some).map_err(|_| {
            url.error("the path is the number of a database, as in `redis://localhost/0`")
        }),
    }
}

fn socket(url: &BackendUrl) -> Result<Address> {
    match (url.hosts(), url.path()) {
        ([], path) if path.len() > 1 && path.starts_with('/') => Ok(Address::Socket(path.into())),
        _ => {
            Err(url.error("the whole path of a socket is needed, as in `redis+unix:///run/redis`"))
        }
    }
}

fn files(url: &BackendUrl, parameters: &Parameters<'_>, with_tls: bool) -> Result<Files> {
    let file = |name| match parameters.text(name) {
        Some(_) if !with_tls => Err(parameters.bad(name, "it is for `rediss:`")),
        path => Ok(path.map(PathBuf::from)),
    };
    let identity = match (file("cert")?, file("key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(url.error("the parameters `cert` and `key` go together")),
    };
    Ok(Files { roots: file("cacert")?, identity })
}

async fn tls(url: &BackendUrl, files: Files) -> Result<Tls> {
    let loading = tokio::task::spawn_blocking(move || Tls::load(&files));
    match loading.await {
        Ok(loaded) => loaded.map_err(|problem| url.error(problem)),
        Err(stopped) => Err(url.error(stopped.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Config;

    async fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap()).await
    }

    #[tokio::test]
    async fn a_url_says_where_and_how() {
        let plain = config("redis://localhost").await.unwrap();
        assert_eq!(plain.endpoint.to_string(), "localhost:6379/0");
        assert_eq!(plain.call_limit, None);
        let full = config("redis://me:pw@[::1]:7000/3?call_limit=2s&ttl=10s").await.unwrap();
        assert_eq!(full.endpoint.to_string(), "[::1]:7000/3");
        assert_eq!(full.call_limit, Some(Duration::from_secs(2)));
        assert!(!format!("{full:?}").contains("pw"), "{full:?}");
        for url in ["redis+unix:///run/a%20b.sock?db=2", "unix://:pw@/run/a%20b.sock?db=2"] {
            let socket = config(url).await.unwrap();
            assert_eq!(socket.endpoint.to_string(), "/run/a b.sock/2");
            assert!(!format!("{socket:?}").contains("pw"), "{socket:?}");
        }
        assert_eq!(config("redis://h?db=7").await.unwrap().endpoint.to_string(), "h:6379/7");
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("http://h", "scheme"),
            ("redis://a,b", "one host"),
            ("redis:", "one host"),
            ("redis://h/zero", "number of a database"),
            ("redis://h/-1", "number of a database"),
            ("redis://h/1?db=1", "already"),
            ("redis://h?db=x", "db"),
            ("redis://h?dialect=redlock", "known are `lockkit` and `plain`"),
            ("redis://me@h", "password"),
            ("redis://h?call_limit=0s", "at most 30s"),
            ("redis://h?call_limit=31s", "at most 30s"),
            ("redis://h?fast=1", "max_hold, call_limit"),
            ("redis://h?cacert=x.pem", "it is for `rediss:`"),
            ("redis+unix:///s?key=x.pem", "it is for `rediss:`"),
            ("rediss://h?cert=x.pem", "go together"),
            ("rediss://h?cacert=/no/such/file", "/no/such/file: "),
            ("rediss://h?cacert=/dev/null", "/dev/null: there is no certificate in it"),
            ("redis+unix://host/run/redis", "whole path of a socket"),
            ("redis+unix:run/redis", "whole path of a socket"),
            ("unix://", "whole path of a socket"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
