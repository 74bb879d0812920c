use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Driver, DriverError, ErrorKind};
use lockkit_core::{BackendUrl, BoxError, Capabilities, Error, Locker, Parameter, Result, memory};
use tokio::runtime::Handle;

/// How long connecting may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Connects to the backend that `url` names and makes a locker on it.
///
/// The scheme chooses the driver: see [`BACKENDS`]. The parameters that every driver takes are
/// [`COMMON_PARAMETERS`](crate::COMMON_PARAMETERS); each driver adds its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
/// let locker = lockkit::connect("memory:jobs?ttl=10s").await?;
/// let guard = locker.lock("nightly-report")?.acquire().await?;
/// # guard.release().await }
/// ```
///
/// # Errors
///
/// [`Error::Config`] for a URL that cannot be used, a scheme that is unknown, a scheme whose
/// feature (of the same name) is off, and outside a tokio runtime; [`Error::Unreachable`] after 5
/// seconds at the latest; and whatever else the driver says. Among the sources of an error of a server
/// is the URL, without its passwords.
///
/// # Panics
///
/// In a tokio runtime whose timers are not enabled, or, if the backend is a server, whose I/O is
/// not.
///
/// # Cancel safety
///
/// Cancel-safe: nothing is locked yet.
pub async fn connect(url: &str) -> Result<Locker> {
    connect_url(&url.parse()?).await
}

/// Like [`connect`], for a URL that was parsed before.
///
/// # Errors
///
/// As [`connect`].
///
/// # Panics
///
/// As [`connect`].
///
/// # Cancel safety
///
/// As [`connect`].
pub async fn connect_url(url: &BackendUrl) -> Result<Locker> {
    let Some(backend) = Backend::of(url) else {
        let known: Vec<_> = BACKENDS.iter().map(|backend| backend.scheme).collect();
        return Err(url.error(format!("the scheme is unknown; known are: {}", known.join(", "))));
    };
    // Without a runtime there are no timers, and using one would panic.
    Handle::try_current().map_err(|error| Error::config("tokio runtime", error.to_string()))?;
    let driver = tokio::time::timeout(LIMIT, driver(url)).await.unwrap_or_else(|_| {
        let late = format!("no answer within {LIMIT:?}");
        Err(Error::connecting(backend.scheme, DriverError::new(ErrorKind::Unreachable, late)))
    });
    Locker::from_url(driver.map_err(|error| error_at(url, error))?, url)
}

/// The error of a backend that was to be connected, with the URL among its sources: what a server's
/// client says may be as little as "connection refused". Where locks are files, the path is there.
fn error_at(url: &BackendUrl, mut error: Error) -> Error {
    if let Error::Unreachable(failure)
    | Error::Denied(failure)
    | Error::Capacity(failure)
    | Error::Foreign(failure)
    | Error::Misconfigured(failure) = &mut error
        && !matches!(scheme(url), "file" | "sqlite")
    {
        let source = std::mem::replace(&mut failure.source, BoxError::from(""));
        failure.source = Box::new(At { url: url.to_string(), source });
    }
    error
}

/// What was said by the backend of this URL.
#[derive(Debug)]
struct At {
    url: String,
    source: BoxError,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl std::error::Error for At {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// The scheme under which the backend of the URL stands in the table.
fn scheme(url: &BackendUrl) -> &str {
    match url.scheme() {
        "etcds" => "etcd",
        "mariadb" => "mysql",
        "postgresql" => "postgres",
        "redis+cluster" | "redis+sentinel" | "redis+unix" | "rediss" | "rediss+cluster"
        | "rediss+sentinel" | "unix" => "redis",
        "redlocks" => "redlock",
        "zk" | "zks" | "zookeepers" => "zookeeper",
        scheme => scheme,
    }
}

/// Whether holds are to be kept by a session, if the backend has such holds.
fn wants_session(url: &BackendUrl) -> bool {
    url.parameter("hold") == Some("session")
}

async fn driver(url: &BackendUrl) -> Result<Arc<dyn Driver>> {
    Ok(match scheme(url) {
        #[cfg(feature = "postgres")]
        "postgres" if wants_session(url) => {
            use lockkit_sql::postgres::session::PostgresSessionDriver;
            Arc::new(PostgresSessionDriver::connect(url).await?)
        }
        #[cfg(feature = "mysql")]
        "mysql" if wants_session(url) => {
            use lockkit_sql::mysql::session::MysqlSessionDriver;
            Arc::new(MysqlSessionDriver::connect(url).await?)
        }
        "memory" => Arc::new(memory::MemoryDriver::connect(url)?),
        #[cfg(feature = "etcd")]
        "etcd" => Arc::new(lockkit_etcd::EtcdDriver::connect(url).await?),
        #[cfg(feature = "file")]
        "file" => Arc::new(lockkit_file::FileDriver::connect(url).await?),
        #[cfg(feature = "mysql")]
        "mysql" => Arc::new(lockkit_sql::mysql::MysqlDriver::connect(url).await?),
        #[cfg(feature = "postgres")]
        "postgres" => Arc::new(lockkit_sql::postgres::PostgresDriver::connect(url).await?),
        #[cfg(feature = "redis")]
        "redis" => Arc::new(lockkit_redis::RedisDriver::connect(url).await?),
        #[cfg(feature = "redlock")]
        "redlock" => Arc::new(redlock(url).await?),
        #[cfg(feature = "sqlite")]
        "sqlite" => Arc::new(lockkit_sql::sqlite::SqliteDriver::connect(url).await?),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Arc::new(lockkit_zk::ZooKeeperDriver::connect(url).await?),
        // Every scheme in the table has a driver, unless its feature is off.
        off => {
            return Err(url.error(format!(
                "the feature `{off}` is off: `cargo add lockkit -F {off}` turns it on"
            )));
        }
    })
}

/// A majority over the Redis servers that the URL names.
#[cfg(feature = "redlock")]
async fn redlock(url: &BackendUrl) -> Result<lockkit_redlock::RedlockDriver> {
    let settings = lockkit_redlock::Settings::from_url(url, &REDLOCK)?;
    let mut driver = lockkit_redlock::RedlockDriver::builder().settings(settings);
    let scheme = if url.scheme() == "redlocks" { "rediss" } else { "redis" };
    for host in url.hosts() {
        let node = url.of_host(scheme, host, lockkit_redis::NODE_PARAMETERS);
        driver = driver.node_at(host.to_string(), move || {
            let node = node.clone();
            async move { lockkit_redis::RedisDriver::connect(&node).await }
        });
    }
    driver.connect().await
}

/// The parameters of the quorum and those of its nodes.
#[cfg(feature = "redlock")]
static REDLOCK: [Parameter; {
    lockkit_redlock::PARAMETERS.len() + lockkit_redis::NODE_PARAMETERS.len()
}] = {
    let (own, of_nodes) = (lockkit_redlock::PARAMETERS, lockkit_redis::NODE_PARAMETERS);
    let mut all = [own[0]; _];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < own.len() { own[at] } else { of_nodes[at - own.len()] };
        at += 1;
    }
    all
};

/// A backend that [`connect`] knows.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// What its URLs begin with.
    pub scheme: &'static str,
    /// The feature that turns it on; `None` if it is always there.
    pub feature: Option<&'static str>,
    /// What its driver promises; `None` while the feature is off. A parameter may set another
    /// bound for leases, as `max_ttl` of Redlock does; [`Locker::capabilities`] has it.
    pub capabilities: Option<Capabilities>,
    /// The parameters of its URLs beside the [common](crate::COMMON_PARAMETERS) ones; none while
    /// the feature is off.
    pub parameters: &'static [Parameter],
}

/// The backends, including those whose feature is off.
pub static BACKENDS: &[Backend] = &[
    Backend {
        scheme: "memory",
        feature: None,
        capabilities: Some(memory::CAPABILITIES),
        parameters: memory::PARAMETERS,
    },
    #[cfg(feature = "file")]
    Backend {
        scheme: "file",
        feature: Some("file"),
        capabilities: Some(lockkit_file::CAPABILITIES),
        parameters: lockkit_file::PARAMETERS,
    },
    #[cfg(not(feature = "file"))]
    Backend::off("file"),
    #[cfg(feature = "sqlite")]
    Backend {
        scheme: "sqlite",
        feature: Some("sqlite"),
        capabilities: Some(lockkit_sql::sqlite::CAPABILITIES),
        parameters: lockkit_sql::sqlite::PARAMETERS,
    },
    #[cfg(not(feature = "sqlite"))]
    Backend::off("sqlite"),
    #[cfg(feature = "postgres")]
    Backend {
        scheme: "postgres",
        feature: Some("postgres"),
        capabilities: Some(lockkit_sql::postgres::CAPABILITIES),
        parameters: lockkit_sql::postgres::PARAMETERS,
    },
    #[cfg(not(feature = "postgres"))]
    Backend::off("postgres"),
    #[cfg(feature = "mysql")]
    Backend {
        scheme: "mysql",
        feature: Some("mysql"),
        capabilities: Some(lockkit_sql::mysql::CAPABILITIES),
        parameters: lockkit_sql::mysql::PARAMETERS,
    },
    #[cfg(not(feature = "mysql"))]
    Backend::off("mysql"),
    #[cfg(feature = "redis")]
    Backend {
        scheme: "redis",
        feature: Some("redis"),
        capabilities: Some(lockkit_redis::CAPABILITIES),
        parameters: lockkit_redis::PARAMETERS,
    },
    #[cfg(not(feature = "redis"))]
    Backend::off("redis"),
    #[cfg(feature = "redlock")]
    Backend {
        scheme: "redlock",
        feature: Some("redlock"),
        capabilities: Some(lockkit_redlock::CAPABILITIES),
        parameters: &REDLOCK,
    },
    #[cfg(not(feature = "redlock"))]
    Backend::off("redlock"),
    #[cfg(feature = "etcd")]
    Backend {
        scheme: "etcd",
        feature: Some("etcd"),
        capabilities: Some(lockkit_etcd::CAPABILITIES),
        parameters: lockkit_etcd::PARAMETERS,
    },
    #[cfg(not(feature = "etcd"))]
    Backend::off("etcd"),
    #[cfg(feature = "zookeeper")]
    Backend {
        scheme: "zookeeper",
        feature: Some("zookeeper"),
        capabilities: Some(lockkit_zk::CAPABILITIES),
        parameters: lockkit_zk::PARAMETERS,
    },
    #[cfg(not(feature = "zookeeper"))]
    Backend::off("zookeeper"),
];

/// Those of the [`BACKENDS`] whose holds may be kept by a session, and what is different about them
/// with `hold=session` in the URL.
pub static SESSION_BACKENDS: &[Backend] = &[
    #[cfg(feature = "postgres")]
    Backend {
        scheme: "postgres",
        feature: Some("postgres"),
        capabilities: Some(lockkit_sql::postgres::session::CAPABILITIES),
        parameters: lockkit_sql::postgres::session::PARAMETERS,
    },
    #[cfg(not(feature = "postgres"))]
    Backend::off("postgres"),
    #[cfg(feature = "mysql")]
    Backend {
        scheme: "mysql",
        feature: Some("mysql"),
        capabilities: Some(lockkit_sql::mysql::session::CAPABILITIES),
        parameters: lockkit_sql::mysql::session::PARAMETERS,
    },
    #[cfg(not(feature = "mysql"))]
    Backend::off("mysql"),
];

/// Those of the [`BACKENDS`] that can do without their own layout, and what is different about them
/// with `dialect=plain` in the URL.
pub static PLAIN_BACKENDS: &[Backend] = &[
    #[cfg(feature = "redis")]
    Backend {
        scheme: "redis",
        feature: Some("redis"),
        capabilities: Some(lockkit_redis::PLAIN_CAPABILITIES),
        parameters: lockkit_redis::PARAMETERS,
    },
    #[cfg(not(feature = "redis"))]
    Backend::off("redis"),
];

impl Backend {
    /// The one whose URL this is, by its scheme and by how it wants locks to be held and laid out.
    /// `None` if no backend has this scheme.
    pub fn of(url: &BackendUrl) -> Option<&'static Self> {
        let among = |all: &'static [Self]| all.iter().find(|backend| backend.scheme == scheme(url));
        let session = among(SESSION_BACKENDS).filter(|_| wants_session(url));
        let plain = among(PLAIN_BACKENDS).filter(|_| url.parameter("dialect") == Some("plain"));
        session.or(plain).or_else(|| among(BACKENDS))
    }
}

#[cfg(not(all(
    feature = "etcd",
    feature = "file",
    feature = "mysql",
    feature = "postgres",
    feature = "redlock",
    feature = "sqlite",
    feature = "zookeeper"
)))]
impl Backend {
    /// A backend whose feature, named like its scheme, is off.
    const fn off(scheme: &'static str) -> Self {
        Self { scheme, feature: Some(scheme), capabilities: None, parameters: &[] }
    }
}
