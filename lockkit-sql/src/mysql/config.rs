use lockkit_core::driver::CALL_LIMIT;
use lockkit_core::{BackendUrl, Capabilities, Parameter, Parameters, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use super::claims;
use super::endpoint::Endpoint;
use crate::leases::{CONNECTIONS, Leases};
use crate::session::hold::{self, Hold};
use crate::sights::OBSERVE;
use crate::tls;

/// The id of the driver, and the scheme of its URLs.
pub(super) const ID: &str = "mysql";

/// The parameters of a MySQL or MariaDB URL, besides the
/// [common ones](lockkit_core::COMMON_PARAMETERS).
pub const PARAMETERS: &[Parameter] =
    &[CALL_LIMIT, hold::HOLD, CONNECTIONS, OBSERVE, SOCKET, SSL_MODE, SSL_CA, SSL_CERT, SSL_KEY];

/// The same for a URL with `hold=session`.
pub const SESSION_PARAMETERS: &[Parameter] = &[
    CALL_LIMIT,
    hold::HOLD,
    Parameter::new(
        "keys",
        "what the server knows a lock by: `hashed`, from namespace and name, or `exact`, the name, \
         which other software locks by `GET_LOCK`",
        "hashed",
    ),
    hold::WAITING,
    SOCKET,
    SSL_MODE,
    SSL_CA,
    SSL_CERT,
    SSL_KEY,
];

const SOCKET: Parameter = Parameter::new(
    "socket",
    "path of the server's socket, used instead of host and port, though a host is to be written",
    "none",
);
const SSL_MODE: Parameter = Parameter::new(
    "ssl-mode",
    "`disabled`, `preferred`, `required`, `verify_ca` or `verify_identity`",
    "preferred",
);
const SSL_CA: Parameter = Parameter::new(
    "ssl-ca",
    "file with certificates to trust, beside those that the system trusts",
    "none",
);
const SSL_CERT: Parameter =
    Parameter::new("ssl-cert", "file with the client's certificate", "none");
const SSL_KEY: Parameter = Parameter::new("ssl-key", "file with the key to it", "none");

/// What a URL says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) endpoint: Endpoint,
    pub(super) leases: Leases,
}

impl Config {
    pub(super) async fn from_url(url: &BackendUrl) -> Result<Self> {
        check_scheme(url)?;
        let parameters = url.parameters(PARAMETERS)?;
        let leases = Leases::from_parameters(&parameters)?;
        let endpoint = Endpoint::new(options(url, &parameters).await?, claims::REQUESTS);
        Ok(Self { endpoint, leases })
    }
}

/// What a URL with `hold=session` says.
#[derive(Debug)]
pub(super) struct SessionConfig {
    pub(super) endpoint: Endpoint,
    pub(super) hold: Hold,
}

impl SessionConfig {
    pub(super) async fn from_url(url: &BackendUrl, can: &Capabilities) -> Result<Self> {
        check_scheme(url)?;
        let parameters = url.parameters(SESSION_PARAMETERS)?;
        let hold = Hold::from_parameters(&parameters, can)?;
        Ok(Self { endpoint: Endpoint::new(options(url, &parameters).await?, &[]), hold })
    }
}

fn check_scheme(url: &BackendUrl) -> Result<()> {
    match url.scheme() {
        ID | "mariadb" => Ok(()),
        _ => Err(url.error("the scheme of a MySQL or MariaDB database is `mysql` or `mariadb`")),
    }
}

async fn options(url: &BackendUrl, parameters: &Parameters<'_>) -> Result<MySqlConnectOptions> {
    let [host] = url.hosts() else {
        return Err(url.error("one host is needed, as in `mysql://app@localhost/shop`"));
    };
    let Some(user) = url.user() else {
        return Err(url.error("a user is needed, as in `mysql://app@localhost/shop`"));
    };
    let database = match url.path().trim_start_matches('/') {
        database if !database.is_empty() && !database.contains('/') => database,
        _ => return Err(url.error("the path is the name of a database, as in `/shop`")),
    };
    let mut options =
        MySqlConnectOptions::new().host(host.name()).username(user).database(database);
    if let Some(port) = host.port() {
        options = options.port(port);
    }
    if let Some(password) = url.password() {
        options = options.password(password);
    }
    if let Some(socket) = parameters.text("socket") {
        options = options.socket(socket);
    }
    let mode = parameters.parsed::<MySqlSslMode>("ssl-mode")?;
    let is_checked = matches!(mode, Some(MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity));
    tls::check_authorities(parameters, "ssl-ca", is_checked, "ssl-mode=verify_identity")?;
    let file = |name| tls::file(parameters, name);
    let (authorities, certificate, key) =
        tokio::try_join!(file("ssl-ca"), file("ssl-cert"), file("ssl-key"))?;
    for (file, set) in [
        (authorities, MySqlConnectOptions::ssl_ca as fn(_, _) -> _),
        (certificate, MySqlConnectOptions::ssl_client_cert),
        (key, MySqlConnectOptions::ssl_client_key),
    ] {
        if let Some(file) = file {
            options = set(options, file);
        }
    }
    if let Some(MySqlSslMode::VerifyCa) = mode {
        tls::name_a_provider();
    }
    if let Some(mode) = mode {
        options = options.ssl_mode(mode);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::poll;
    use lockkit_core::driver::CallLimit;
    use tokio_rustls::rustls::crypto::CryptoProvider;

    use super::{Config, SessionConfig};
    use crate::mysql::session::CAPABILITIES;
    use crate::tls::testing::{Pipe, alone};

    async fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap()).await
    }

    #[tokio::test]
    async fn a_url_says_where_and_how() {
        let plain = config("mysql://me@localhost/shop").await.unwrap();
        assert_eq!(plain.endpoint.to_string(), "localhost:3306/shop");
        assert_eq!((plain.leases.call_limit, plain.leases.connections), (CallLimit::default(), 4));
        let full = config(
            "mariadb://me:hunter2@[::1]:7000/shop?call_limit=2s&ttl=10s&connections=2\
             &observe=true&ssl-mode=verify_identity&ssl-ca=Cargo.toml",
        )
        .await
        .unwrap();
        assert_eq!(full.endpoint.to_string(), "[::1]:7000/shop");
        assert_eq!(
            (full.leases.call_limit, full.leases.connections),
            (CallLimit::new(Duration::from_secs(2)), 2)
        );
        assert!(full.leases.observe && !plain.leases.observe);
        assert!(!format!("{full:?}").contains("hunter2"), "{full:?}");
        let local = config("mysql://me@localhost/shop?socket=/run/mysqld.sock").await.unwrap();
        assert_eq!(local.endpoint.to_string(), "/run/mysqld.sock/shop");
    }

    /// In a process of its own, since the provider is that of the whole process.
    #[tokio::test]
    async fn a_provider_is_named_only_where_sqlx_asks_for_that_of_the_process() {
        const VARIABLE: &str = "LOCKKIT_TEST_PROVIDER";
        let named = CryptoProvider::get_default;
        if env::var_os(VARIABLE).is_none() {
            return alone(VARIABLE, "none");
        }
        for mode in ["disabled", "preferred", "required", "verify_identity"] {
            config(&format!("mysql://me@h/d?ssl-mode={mode}")).await.unwrap();
            assert!(named().is_none(), "{mode}");
        }
        config("mysql://me@h/d?ssl-mode=verify_ca").await.unwrap();
        assert!(named().is_some());
    }

    /// It is left to the client, which has a limit of its own.
    #[tokio::test]
    async fn a_file_that_cannot_be_opened_yet_holds_up_nobody() {
        let pipe = Pipe::new();
        let url = format!("mysql://me@h/d?ssl-cert={}", pipe.path.display());
        let mut configuring = pin!(config(&url));
        assert!(poll!(configuring.as_mut()).is_pending());
        configuring.await.unwrap();
        pipe.open().await;
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("postgres://me@h/d", "scheme"),
            ("mysql://me@a,b/d", "one host"),
            ("mysql:", "one host"),
            ("mysql://h/d", "a user"),
            ("mysql://me@h", "name of a database"),
            ("mysql://me@h/a/b", "name of a database"),
            ("mysql://me@h/d?call_limit=0s", "at most 30s"),
            ("mysql://me@h/d?connections=1", "2 to 100"),
            ("mysql://me@h/d?connections=many", "connections"),
            ("mysql://me@h/d?observe=maybe", "observe"),
            ("mysql://me@h/d?ssl-mode=maybe", "ssl-mode"),
            ("mysql://me@h/d?ssl-mode=verify_ca&ssl-ca=/no/such/file", "`ssl-ca`: /no/such/file: "),
            ("mysql://me@h/d?ssl-ca=Cargo.toml", "`ssl-ca`: it is for"),
            ("mysql://me@h/d?ssl-mode=required&ssl-ca=Cargo.toml", "no certificate is checked"),
            ("mysql://me@h/d?ssl-cert=/no/such/file", "/no/such/file: "),
            ("mysql://me@h/d?ssl-key=/no/such/file", "/no/such/file: "),
            ("mysql://me@h/d?hold=session", "the other driver"),
            ("mysql://me@h/d?fast=1", "known are: namespace, ttl, label, max_hold, call_limit"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn a_url_of_sessions_says_where_and_keeps_the_password_to_itself() {
        let url = "mysql://me:hunter2@h/d?hold=session&ttl=5s".parse().unwrap();
        let config = SessionConfig::from_url(&url, &CAPABILITIES).await.unwrap();
        assert_eq!(config.endpoint.to_string(), "h:3306/d");
        assert_eq!(config.hold.ttl, Duration::from_secs(5));
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    }
}
