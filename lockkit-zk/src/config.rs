use std::fs;
use std::time::Duration;

use lockkit_core::driver::{CALL_LIMIT, CallLimit, blocking};
use lockkit_core::{BackendUrl, Host, Lease, Parameter, Parameters, Result};

use crate::endpoint::{Credentials, Endpoint, LONGEST_TICK};
use crate::layout::{Dialect, Layout};
use crate::tls::{Tls, is_name};

/// What the driver is called, and the scheme of its URLs.
pub(crate) const ID: &str = "zookeeper";
/// The scheme of URLs of servers that speak TLS.
const ID_WITH_TLS: &str = "zookeepers";

/// The parameters of a `zookeeper:` URL, beside the [common ones](lockkit_core::COMMON_PARAMETERS).
/// Of those, `ttl` is how long the session is to be.
pub const PARAMETERS: &[Parameter] = &[
    CALL_LIMIT,
    Parameter::new(
        "cacert",
        "file with the certificates to trust; for `zookeepers:`",
        "none, and it is needed",
    ),
    Parameter::new("cert", "file with the client's certificate; for `zookeepers:`", "none"),
    Parameter::new("key", "file with the key to it; for `zookeepers:`", "none"),
    Parameter::new(
        "dialect",
        "whose nodes to share locks with: `lockkit`, `curator` or `kazoo`",
        "lockkit",
    ),
    Parameter::new(
        "tick",
        "the servers' `tickTime`, such as `2s`, where they do not tell",
        "asked of the servers",
    ),
];

const DEFAULT_PORT: u16 = 2181;
/// The longest path in a URL, in bytes. A request may have a million.
const LONGEST_ROOT: usize = 1024;

/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) endpoint: Endpoint,
    pub(crate) layout: Layout,
    pub(crate) call_limit: CallLimit,
}

impl Config {
    pub(crate) async fn from_url(url: &BackendUrl) -> Result<Self> {
        let with_tls = match url.scheme() {
            ID | "zk" => false,
            ID_WITH_TLS | "zks" => true,
            _ => return Err(url.error("the scheme is `zookeeper`, or `zookeepers` with TLS")),
        };
        let parameters = url.parameters(PARAMETERS)?;
        if url.hosts().is_empty() {
            return Err(url.error("a host is needed, as in `zookeeper://localhost`"));
        }
        let host = |host: &Host| match host.port() {
            None if with_tls => {
                Err(url.error(format!("no port is usual with TLS: name that of `{host}`")))
            }
            port => Ok((host.name().to_owned(), port.unwrap_or(DEFAULT_PORT))),
        };
        let hosts = url.hosts().iter().map(host).collect::<Result<_>>()?;
        let tls = tls(url, &parameters, with_tls).await?;
        let credentials = match (url.user(), url.password()) {
            (Some(user), Some(password)) if !user.contains(':') => {
                Some(Credentials::new(user, password))
            }
            (None, None) => None,
            _ => return Err(url.error("a user without a colon needs a password, and the reverse")),
        };
        let session = parameters.duration("ttl")?.unwrap_or(Lease::default().ttl());
        Ok(Self {
            endpoint: Endpoint::new(hosts, credentials, session, tick(&parameters)?, tls),
            layout: Layout::new(
                root(url)?,
                parameters.parsed::<Dialect>("dialect")?.unwrap_or_default(),
            ),
            call_limit: parameters.call_limit()?,
        })
    }
}

/// How to encrypt, where the scheme asks for it.
async fn tls(url: &BackendUrl, parameters: &Parameters<'_>, with_tls: bool) -> Result<Option<Tls>> {
    let file = async |name| match parameters.text(name) {
        Some(_) if !with_tls => Err(parameters.bad(name, "it is for `zookeepers:`")),
        Some(path) => {
            let file = path.to_owned();
            match blocking(move || fs::read_to_string(file)).await.flatten() {
                Ok(content) => Ok(Some(content)),
                Err(error) => Err(parameters.bad(name, format!("{path}: {error}"))),
            }
        }
        None => Ok(None),
    };
    let (cacert, cert, key) = (file("cacert").await?, file("cert").await?, file("key").await?);
    if !with_tls {
        return Ok(None);
    }
    let identity = match (&cert, &key) {
        (Some(cert), Some(key)) => Some((&**cert, &**key)),
        (None, None) => None,
        _ => return Err(url.error("the parameters `cert` and `key` go together")),
    };
    let tls = Tls::from_pem(cacert.as_deref().unwrap_or_default(), identity);
    let tls = tls.map_err(|reason| match cacert {
        Some(_) => url.error(reason),
        None => url.error(format!("`cacert` is needed with TLS: {reason}")),
    })?;
    match url.hosts().iter().find(|host| !is_name(host.name())) {
        Some(host) => Err(url.error(format!("no certificate can be for the host `{host}`"))),
        None => Ok(Some(tls)),
    }
}

fn tick(parameters: &Parameters<'_>) -> Result<Option<Duration>> {
    let tick = parameters.duration("tick")?;
    if tick.is_some_and(|tick| tick.is_zero() || tick > LONGEST_TICK) {
        return Err(parameters.bad("tick", "must be more than zero and at most 60s"));
    }
    Ok(tick)
}

/// The path, as ZooKeeper takes it.
fn root(url: &BackendUrl) -> Result<&str> {
    let root = url.path().strip_suffix('/').unwrap_or(url.path());
    let is_legal = |segment: &str| {
        !["", ".", ".."].contains(&segment)
            && segment.chars().all(|c| {
                !c.is_control()
                    && !('\u{e000}'..='\u{f8ff}').contains(&c)
                    // Of characters beyond this, the servers see halves, which they do not take.
                    && c < '\u{fff0}'
            })
    };
    if !root.split('/').skip(1).all(is_legal) || root.len() > LONGEST_ROOT {
        return Err(url.error("the path is no path of ZooKeeper, as in `/apps/shop`"));
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(url.error("`/zookeeper` is the servers' own"));
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CallLimit, Config};

    async fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap()).await
    }

    #[tokio::test]
    async fn a_url_says_where_and_how() {
        let plain = config("zookeeper://localhost").await.unwrap();
        assert_eq!(plain.endpoint.to_string(), "localhost:2181");
        assert_eq!((plain.layout.top(), plain.call_limit), ("/", CallLimit::default()));
        let full = config("zk://me:pw@a,[::1]:7000/apps/shop/?ttl=10s&tick=1s&call_limit=2s")
            .await
            .unwrap();
        assert_eq!(full.endpoint.to_string(), "a:2181,[::1]:7000");
        assert_eq!(full.layout.top(), "/apps/shop");
        assert_eq!(full.call_limit, CallLimit::new(Duration::from_secs(2)));
        assert!(!format!("{full:?}").contains("pw"), "{full:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("redis://h", "scheme"),
            ("zookeeper:", "a host is needed"),
            ("zookeeper://me@h", "password"),
            ("zookeeper://h//x", "no path"),
            ("zookeeper://h/a/../b", "no path"),
            ("zookeeper://h/%ef%bf%bf", "no path"),
            ("zookeeper://h/%f0%9f%94%92", "no path"),
            ("zookeeper://h/zookeeper/x", "servers' own"),
            ("zookeeper://h?dialect=java", "known are"),
            ("zookeeper://h?tick=0s", "at most 60s"),
            ("zookeeper://h?call_limit=31s", "at most 30s"),
            ("zookeeper://h?cacert=x.pem", "it is for `zookeepers:`"),
            ("zookeepers://h?cacert=x.pem", "name that of `h`"),
            ("zookeepers://h:1?cacert=/no/such/file", "/no/such/file: No such file"),
            ("zookeepers://h:1", "`cacert` is needed"),
            ("zookeeper://h?fast=1", "call_limit, cacert"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
        assert!(config(&format!("zookeeper://h/{}", "x".repeat(1025))).await.is_err());
    }
}
