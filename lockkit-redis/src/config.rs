use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{CALL_LIMIT, CallLimit};
use lockkit_core::{BackendUrl, Error, Host, Parameter, Parameters, Result};
use redis::RedisConnectionInfo;

use crate::dialect::Dialect;
use crate::endpoint::{Address, Endpoint, Mode};
use crate::replicas::Replicas;
use crate::sentinel::Sentinels;
use crate::target::Target;
use crate::tls::{Files, Tls};

/// The parameters of a `redis:` URL, besides the [common ones](lockkit_core::COMMON_PARAMETERS).
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
        "with TLS, file with the certificates to trust",
        "those that the system trusts",
    ),
    Parameter::new("cert", "with TLS, file with the client's certificate", "none"),
    Parameter::new("key", "with TLS, file with the key to it", "none"),
    Parameter::new("replicas", "how many replicas must acknowledge a grant or renewal", "none"),
    Parameter::new(
        "replica_timeout",
        "how long they may take, on top of `call_limit`; at most 30s",
        "half of `call_limit`",
    ),
    Parameter::new("sentinel_user", "as whom to greet sentinels; for `redis+sentinel:`", "none"),
    Parameter::new(
        "sentinel_password",
        "the sentinels' password; for `redis+sentinel:`, where that in front of the hosts is the \
         servers'",
        "none",
    ),
];

/// Those of the [`PARAMETERS`] that apply to a single server, such as a node of a quorum.
pub const NODE_PARAMETERS: &[Parameter] =
    PARAMETERS.split_at(PARAMETERS.len() - OF_SENTINELS.len()).0;

/// The last of the [`PARAMETERS`], which are for sentinels only.
const OF_SENTINELS: [&str; 2] = ["sentinel_user", "sentinel_password"];

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_PORT_OF_SENTINELS: u16 = 26379;

/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) target: Target,
    pub(crate) call_limit: CallLimit,
    pub(crate) dialect: Dialect,
    pub(crate) replicas: Option<Replicas>,
}

/// What the scheme says about the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    Socket,
    Sentinels,
    Cluster,
}

impl Config {
    pub(crate) async fn from_url(url: &BackendUrl) -> Result<Self> {
        let (kind, with_tls) = match url.scheme() {
            "redis" => (Kind::Server, false),
            "rediss" => (Kind::Server, true),
            "redis+unix" | "unix" => (Kind::Socket, false),
            "redis+sentinel" => (Kind::Sentinels, false),
            "rediss+sentinel" => (Kind::Sentinels, true),
            "redis+cluster" => (Kind::Cluster, false),
            "rediss+cluster" => (Kind::Cluster, true),
            _ => {
                return Err(url.error(
                    "the scheme of Redis is `redis`, `redis+sentinel` or `redis+cluster`, all also as \
                     `rediss` with TLS, or `redis+unix` for a socket",
                ));
            }
        };
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        let dialect = parameters.parsed("dialect")?.unwrap_or_default();
        let files = files(url, &parameters, with_tls)?;
        let tls = match with_tls {
            true => Some(Tls::of(files).await.map_err(|problem| url.error(problem))?),
            false => None,
        };
        if kind != Kind::Sentinels {
            for name in OF_SENTINELS {
                if parameters.text(name).is_some() {
                    return Err(parameters.bad(name, "it is for `redis+sentinel:`"));
                }
            }
        }
        let path = url.path().trim_start_matches('/');
        let target = match kind {
            Kind::Server => {
                let [host] = url.hosts() else {
                    return Err(url.error("one host is needed, as in `redis://localhost`"));
                };
                let greeting = greeting(url, &parameters, path)?;
                Target::Server(Endpoint::new(address(host, DEFAULT_PORT, tls), greeting))
            }
            Kind::Socket => {
                Target::Server(Endpoint::new(socket(url)?, greeting(url, &parameters, "")?))
            }
            Kind::Sentinels => sentinels(url, &parameters, path, tls)?,
            Kind::Cluster if dialect == Dialect::Plain => {
                return Err(parameters.bad("dialect", "a cluster has no `plain`"));
            }
            Kind::Cluster => cluster(url, &parameters, path, &tls)?,
        };
        let replicas = replicas(&parameters)?;
        if replicas.is_some() && dialect == Dialect::Plain {
            return Err(parameters.bad("replicas", "not with `dialect=plain`"));
        }
        Ok(Self { target, call_limit, dialect, replicas })
    }
}

fn replicas(parameters: &Parameters<'_>) -> Result<Option<Replicas>> {
    const LONGEST: Duration = Duration::from_secs(30);
    let timeout = parameters.duration("replica_timeout")?;
    if timeout.is_some_and(|timeout| timeout < Duration::from_millis(1) || timeout > LONGEST) {
        return Err(parameters.bad("replica_timeout", "must be at least 1ms and at most 30s"));
    }
    match (parameters.parsed("replicas")?, timeout) {
        (Some(0) | None, None) => Ok(None),
        (Some(0) | None, Some(_)) => {
            Err(parameters.bad("replica_timeout", "takes `replicas` as well"))
        }
        (Some(wanted), timeout) => Ok(Some(Replicas { wanted, timeout })),
    }
}

fn sentinels(
    url: &BackendUrl,
    parameters: &Parameters<'_>,
    path: &str,
    tls: Option<Tls>,
) -> Result<Target> {
    let (group, database) = path.split_once('/').unwrap_or((path, ""));
    if group.is_empty() || url.hosts().is_empty() {
        return Err(url.error(
            "hosts of sentinels and what they call the primary are needed, as in \
             `redis+sentinel://host1,host2,host3/main`",
        ));
    }
    let [user, password] = ["sentinel_user", "sentinel_password"].map(|it| parameters.text(it));
    let greeting_of_sentinels = greet(user, password)?;
    let sentinels = url.hosts().iter().map(|host| {
        let address = address(host, DEFAULT_PORT_OF_SENTINELS, tls.clone());
        Endpoint::new(address, greeting_of_sentinels.clone()).expecting(Mode::Sentinel)
    });
    let sentinels = sentinels.collect();
    // The sentinels know the address.
    let nowhere = Address::Network { host: String::new(), port: 0, tls };
    let server = Endpoint::new(nowhere, greeting(url, parameters, database)?);
    Ok(Target::Primary(Arc::new(Sentinels::new(sentinels, group.into(), server))))
}

fn cluster(
    url: &BackendUrl,
    parameters: &Parameters<'_>,
    path: &str,
    tls: &Option<Tls>,
) -> Result<Target> {
    if url.hosts().is_empty() {
        return Err(
            url.error("hosts of members are needed, as in `redis+cluster://host1,host2,host3`")
        );
    }
    let greeting = greeting(url, parameters, path)?;
    if greeting.db() != 0 {
        return Err(url.error("a cluster has no database but 0"));
    }
    let member = |host| {
        let address = address(host, DEFAULT_PORT, tls.clone());
        Endpoint::new(address, greeting.clone()).expecting(Mode::ClusterNode)
    };
    Ok(Target::Cluster(url.hosts().iter().map(member).collect()))
}

fn address(host: &Host, default_port: u16, tls: Option<Tls>) -> Address {
    let port = host.port().unwrap_or(default_port);
    Address::Network { host: host.name().into(), port, tls }
}

/// How to greet the server: as the user of the URL, and for the database with this number or, if
/// there is none, with the number in the parameter `db`.
fn greeting(
    url: &BackendUrl,
    parameters: &Parameters<'_>,
    database: &str,
) -> Result<RedisConnectionInfo> {
    let database = match database {
        "" => None,
        number => Some(number.parse::<u16>().map_err(|_| {
            url.error("the path ends with the number of a database, as in `redis://localhost/0`")
        })?),
    };
    let database = match (database, parameters.parsed::<u16>("db")?) {
        (Some(_), Some(_)) => {
            return Err(parameters.bad("db", "the path tells the number already"));
        }
        (path, parameter) => path.or(parameter).unwrap_or(0),
    };
    Ok(greet(url.user(), url.password())?.set_db(database.into()))
}

fn greet(user: Option<&str>, password: Option<&str>) -> Result<RedisConnectionInfo> {
    let mut greeting = RedisConnectionInfo::default();
    if let Some(password) = password {
        greeting = greeting.set_password(password);
    }
    if let Some(user) = user {
        if password.is_none() {
            // It may be the password, if the colon before it was forgotten.
            let reason =
                "a user needs a password: `USER:PASSWORD@`, or `:PASSWORD@` without a user";
            return Err(Error::config("backend URL", reason));
        }
        greeting = greeting.set_username(user);
    }
    Ok(greeting)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CallLimit, Config, NODE_PARAMETERS, OF_SENTINELS, PARAMETERS};

    async fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap()).await
    }

    #[test]
    fn a_node_has_no_parameters_of_sentinels() {
        let (of_nodes, others) = PARAMETERS.split_at(NODE_PARAMETERS.len());
        assert_eq!(of_nodes, NODE_PARAMETERS);
        assert!(others.iter().map(|other| other.name).eq(OF_SENTINELS));
    }

    #[tokio::test]
    async fn a_url_says_where_and_how() {
        let plain = config("redis://localhost").await.unwrap();
        assert_eq!(plain.target.to_string(), "localhost:6379/0");
        assert_eq!(plain.call_limit, CallLimit::default());
        let full = config("redis://me:pw@[::1]:7000/3?call_limit=2s&ttl=10s").await.unwrap();
        assert_eq!(full.target.to_string(), "[::1]:7000/3");
        assert_eq!(full.call_limit, CallLimit::new(Duration::from_secs(2)));
        assert!(!format!("{full:?}").contains("pw"), "{full:?}");
        for url in ["redis+unix:///run/a%20b.sock?db=2", "unix://:pw@/run/a%20b.sock?db=2"] {
            let socket = config(url).await.unwrap();
            assert_eq!(socket.target.to_string(), "/run/a b.sock/2");
            assert!(!format!("{socket:?}").contains("pw"), "{socket:?}");
        }
        assert_eq!(config("redis://h?db=7").await.unwrap().target.to_string(), "h:6379/7");
    }

    #[tokio::test]
    async fn a_url_names_sentinels_and_what_they_watch() {
        let url = "redis+sentinel://me:pw@a,[::1]:7000/main/3?sentinel_password=pw2";
        let config = config(url).await.unwrap();
        let sentinels = config.target.sentinels().unwrap();
        let hosts: Vec<_> = sentinels.all().iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["a:26379/0", "[::1]:7000/0"]);
        assert_eq!(sentinels.group(), "main");
        assert_eq!(sentinels.server().at("b", 1).to_string(), "b:1/3");
        assert_eq!(config.target.user(), "me");
        assert!(!format!("{config:?}").contains("pw"), "{config:?}");
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
            ("redis://h?sentinel_password=pw", "for `redis+sentinel:`"),
            ("redis://h?replicas=-1", "invalid digit"),
            ("redis://h?replicas=2&replica_timeout=0s", "at least 1ms"),
            ("redis://h?replicas=1&dialect=plain", "not with"),
            ("redis://h?replica_timeout=1s", "takes `replicas` as well"),
            ("redis+cluster://h/1", "no database but 0"),
            ("redis+cluster:", "hosts of members"),
            ("redis+cluster://h?dialect=plain", "has no `plain`"),
            ("redis+sentinel://h", "what they call the primary"),
            ("redis+sentinel:/main", "hosts of sentinels"),
            ("redis+sentinel://h/main/zero", "number of a database"),
            ("redis+sentinel://h/main?sentinel_user=me", "password"),
            ("redis+unix://host/run/redis", "whole path of a socket"),
            ("redis+unix:run/redis", "whole path of a socket"),
            ("unix://", "whole path of a socket"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
