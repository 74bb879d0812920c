use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{ConnectOptions, TlsOptions};
use lockkit_core::driver::{CALL_LIMIT, CallLimit};
use lockkit_core::{BackendUrl, Namespace, Parameter, Result};

use crate::layout::Dialect;
use crate::members::Members;
use crate::tls::{Files, Tls};

/// What the driver is called, and the scheme of its URLs.
pub(crate) const ID: &str = "etcd";
/// The scheme for clusters that speak TLS.
pub(crate) const ID_WITH_TLS: &str = "etcds";

const DEFAULT_PORT: u16 = 2379;

/// The parameters of an `etcd:` URL, besides the [common ones](lockkit_core::COMMON_PARAMETERS).
pub const PARAMETERS: &[Parameter] = &[
    CALL_LIMIT,
    Parameter::new(
        "cacert",
        "file with the certificates to trust; for `etcds:`",
        "those that the system trusts",
    ),
    Parameter::new("cert", "file with the client's certificate; for `etcds:`", "none"),
    Parameter::new("key", "file with the key to it; for `etcds:`", "none"),
    Parameter::new("dialect", "whose keys to share locks with: `lockkit` or `etcdctl`", "lockkit"),
];

/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) members: Members,
    pub(crate) call_limit: CallLimit,
    pub(crate) dialect: Dialect,
    /// The namespace of locks that are given no other.
    pub(crate) namespace: Namespace,
}

impl Config {
    pub(crate) async fn from_url(url: &BackendUrl) -> Result<Self> {
        let with_tls = match url.scheme() {
            ID => false,
            ID_WITH_TLS => true,
            _ => return Err(url.error("the scheme of etcd is `etcd`, or `etcds` with TLS")),
        };
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        let dialect = parameters.parsed::<Dialect>("dialect")?.unwrap_or_default();
        let namespace = match parameters.text("namespace") {
            Some(namespace) => Namespace::new(namespace)?,
            None => Namespace::default(),
        };
        if url.hosts().is_empty() {
            return Err(url.error("a host is needed, as in `etcd://localhost`"));
        }
        if !matches!(url.path(), "" | "/") {
            return Err(url.error("etcd has no path; `namespace` keeps applications apart"));
        }
        let credentials = match (url.user(), url.password()) {
            (Some(user), Some(password)) => Some((user.into(), password.into())),
            (None, None) => None,
            _ => return Err(url.error("a user and a password go together")),
        };
        let mut options = ConnectOptions::new()
            // Otherwise, a member that is cut off from the others would keep its watchers in
            // silence.
            .with_require_leader(true)
            // Servers hang up on a client that checks more often than every 5 s, or while nothing
            // is going on.
            .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
            .with_keep_alive_while_idle(false);
        let file = |name| match parameters.text(name) {
            Some(_) if !with_tls => Err(parameters.bad(name, "it is for `etcds:`")),
            path => Ok(path.map(PathBuf::from)),
        };
        let roots = file("cacert")?;
        let identity = match (file("cert")?, file("key")?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(url.error("the parameters `cert` and `key` go together")),
        };
        let mut tls = None;
        if with_tls && roots.is_none() && identity.is_none() {
            options = options.with_tls(TlsOptions::new().with_native_roots());
        } else if with_tls {
            let files = Files { roots, identity };
            tls = Some(Tls::of(files).await.map_err(|problem| url.error(problem))?);
        }
        let protocol = if with_tls { "https" } else { "http" };
        let member = |host: &lockkit_core::Host| {
            let name = match host.name() {
                address if address.contains(':') => format!("[{address}]"),
                name => name.to_owned(),
            };
            format!("{protocol}://{name}:{}", host.port().unwrap_or(DEFAULT_PORT))
        };
        let members = url.hosts().iter().map(member).collect();
        let members = Members::new(members, options, tls, credentials);
        Ok(Self { members, call_limit, dialect, namespace })
    }
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
        let plain = config("etcd://localhost").await.unwrap();
        assert_eq!(format!("{:?}", plain.members), r#"["http://localhost:2379"]"#);
        assert_eq!(plain.call_limit, CallLimit::default());
        let full = config("etcds://me:hunter2@one:1,[::1]/?call_limit=2s&ttl=10s").await.unwrap();
        assert_eq!(format!("{:?}", full.members), r#"["https://one:1", "https://[::1]:2379"]"#);
        assert_eq!(full.call_limit, CallLimit::new(Duration::from_secs(2)));
        assert!(!format!("{full:?}").contains("hunter2"), "{full:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("http://h", "scheme"),
            ("etcd:", "a host is needed"),
            ("etcd://h/shop", "no path"),
            ("etcd://me@h", "go together"),
            ("etcd://h?call_limit=0s", "at most 30s"),
            ("etcd://h?cacert=x.pem", "it is for `etcds:`"),
            ("etcds://h?cacert=/no/such/file", "/no/such/file: No such file"),
            ("etcd://h?dialect=go", "known are `lockkit` and `etcdctl`"),
            ("etcd://h?fast=1", "known are: namespace, ttl, label, max_hold, call_limit"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
