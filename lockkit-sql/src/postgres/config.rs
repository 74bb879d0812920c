use std::env;

use lockkit_core::driver::CALL_LIMIT;
use lockkit_core::{BackendUrl, Capabilities, Parameter, Parameters, Result};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::claims;
use super::endpoint::Endpoint;
use crate::leases::{CONNECTIONS, Leases};
use crate::session::hold::{self, Hold};
use crate::sights::OBSERVE;
use crate::tls;

/// The id of the driver, and the scheme of its URLs.
pub(super) const ID: &str = "postgres";

/// The parameters of a PostgreSQL URL, besides the [common ones](lockkit_core::COMMON_PARAMETERS).
pub const PARAMETERS: &[Parameter] =
    &[CALL_LIMIT, hold::HOLD, CONNECTIONS, OBSERVE, SCHEMA, SSLMODE, SSLROOTCERT, SSLCERT, SSLKEY];

/// The same for a URL with `hold=session`.
pub const SESSION_PARAMETERS: &[Parameter] = &[
    CALL_LIMIT,
    hold::HOLD,
    Parameter::new(
        "keys",
        "what the server knows a lock by: `hashed`, from namespace and name, or `exact`: names are \
         numbers, which other software locks by `pg_advisory_lock`",
        "hashed",
    ),
    hold::WAITING,
    SCHEMA,
    SSLMODE,
    SSLROOTCERT,
    SSLCERT,
    SSLKEY,
];

const SCHEMA: Parameter = Parameter::new(
    "schema",
    "where the tables are; lower-case letters, digits and `_`",
    "the first schema of the user's search path",
);
const SSLMODE: Parameter = Parameter::new(
    "sslmode",
    "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`",
    "prefer",
);
const SSLROOTCERT: Parameter = Parameter::new(
    "sslrootcert",
    "file with certificates to trust, beside those that the system trusts",
    "none",
);
const SSLCERT: Parameter = Parameter::new("sslcert", "file with the client's certificate", "none");
const SSLKEY: Parameter = Parameter::new("sslkey", "file with the key to it", "none");

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
        ID | "postgresql" => Ok(()),
        _ => Err(url.error("the scheme of a PostgreSQL database is `postgres`")),
    }
}

async fn options(url: &BackendUrl, parameters: &Parameters<'_>) -> Result<PgConnectOptions> {
    let [host] = url.hosts() else {
        return Err(url.error("one host is needed, as in `postgres://localhost/shop`"));
    };
    // What is not set here comes from the variables of libpq. Its password file is left alone: the
    // client would look there for the password of another host.
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(host.name())
        .application_name("lockkit")
        // No numbers with a fraction are read, and poolers refuse the setting.
        .extra_float_digits(None);
    if let Some(port) = host.port() {
        options = options.port(port);
    }
    if let Some(user) = url.user() {
        options = options.username(user);
    }
    if let Some(password) = url.password() {
        options = options.password(password);
    }
    match url.path().trim_start_matches('/') {
        "" => (),
        database if !database.contains('/') => options = options.database(database),
        _ => return Err(url.error("the path is the name of a database, as in `/shop`")),
    }
    if let Some(schema) = parameters.text("schema") {
        if !is_identifier(schema) {
            let reason = "1 to 63 of `a-z`, `0-9` and `_`, and no digit first";
            return Err(parameters.bad("schema", reason));
        }
        options = options.options([("search_path", schema)]);
    }
    match parameters.parsed("sslmode")? {
        Some(mode) => options = options.ssl_mode(mode),
        None => check_mode_of_the_variable(url)?,
    }
    let mode = options.get_ssl_mode();
    let is_checked = matches!(mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    tls::check_authorities(parameters, "sslrootcert", is_checked, "sslmode=verify-full")?;
    let file = |name| tls::file(parameters, name);
    let (authorities, certificate, key) =
        tokio::try_join!(file("sslrootcert"), file("sslcert"), file("sslkey"))?;
    for (file, set) in [
        (authorities, PgConnectOptions::ssl_root_cert as fn(_, _) -> _),
        (certificate, PgConnectOptions::ssl_client_cert),
        (key, PgConnectOptions::ssl_client_key),
    ] {
        if let Some(file) = file {
            options = set(options, file);
        }
    }
    if let PgSslMode::VerifyCa = mode {
        tls::name_a_provider();
    }
    Ok(options)
}

/// The client takes a mode that it does not know for no mode at all, and would check no
/// certificate.
fn check_mode_of_the_variable(url: &BackendUrl) -> Result<()> {
    let mode = env::var("PGSSLMODE").ok().filter(|mode| !mode.is_empty());
    match mode.map(|mode| mode.parse::<PgSslMode>()) {
        Some(Err(error)) => Err(url.error(format!("the variable `PGSSLMODE`: {error}"))),
        _ => Ok(()),
    }
}

/// Whether it means the same with and without quotes.
fn is_identifier(text: &str) -> bool {
    let is_legal = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    (1..=63).contains(&text.len())
        && text.bytes().all(is_legal)
        && !text.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::poll;
    use lockkit_core::driver::CallLimit;
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

    use super::{Config, SessionConfig};
    use crate::postgres::session::CAPABILITIES;
    use crate::session::hold::Keys;
    use crate::tls::testing::{Pipe, alone};

    async fn config(url: &str) -> lockkit_core::Result<Config> {
        Config::from_url(&url.parse().unwrap()).await
    }

    #[tokio::test]
    async fn a_url_says_where_and_how() {
        let plain = config("postgres://me@localhost/shop").await.unwrap();
        assert_eq!(plain.endpoint.to_string(), "localhost:5432/shop");
        assert_eq!((plain.leases.call_limit, plain.leases.connections), (CallLimit::default(), 4));
        let full = config(
            "postgresql://me:hunter2@[::1]:7000/shop?call_limit=2s&ttl=10s&connections=2\
             &observe=true&schema=locks&sslmode=verify-full&sslrootcert=Cargo.toml",
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
    }

    /// In processes of its own, since a variable belongs to the whole process, and so does the
    /// provider that is named.
    #[tokio::test]
    async fn the_mode_that_a_variable_has_counts() {
        const VARIABLE: &str = "PGSSLMODE";
        match env::var(VARIABLE).as_deref() {
            Ok("verify-ca") => {
                config("postgres://h").await.unwrap();
                assert!(CryptoProvider::get_default().is_some());
            }
            Ok("verify_ca") => {
                let error = config("postgres://h").await.unwrap_err().to_string();
                assert!(error.contains(VARIABLE), "{error}");
                config("postgres://h?sslmode=prefer").await.unwrap();
            }
            _ => {
                for mode in ["verify-ca", "verify_ca"] {
                    alone(VARIABLE, mode);
                }
            }
        }
    }

    /// In processes of its own, each of which has a provider at most.
    #[tokio::test]
    async fn a_provider_is_named_only_where_sqlx_asks_for_that_of_the_process() {
        const VARIABLE: &str = "LOCKKIT_TEST_PROVIDER";
        let named = CryptoProvider::get_default;
        match env::var(VARIABLE).as_deref() {
            Ok("none") => {
                for mode in ["disable", "allow", "prefer", "require", "verify-full"] {
                    config(&format!("postgres://h?sslmode={mode}")).await.unwrap();
                    assert!(named().is_none(), "{mode}");
                }
                let unusable = "postgres://h?sslmode=verify-ca&sslrootcert=/no/such/file";
                config(unusable).await.unwrap_err();
                assert!(named().is_none(), "for nothing");
                config("postgres://h?sslmode=verify-ca").await.unwrap();
                assert!(named().is_some());
            }
            Ok("own") => {
                ring::default_provider().install_default().unwrap();
                let own = Arc::clone(named().unwrap());
                config("postgres://h?sslmode=verify-ca").await.unwrap();
                assert!(Arc::ptr_eq(&own, named().unwrap()));
            }
            _ => {
                for provider in ["none", "own"] {
                    alone(VARIABLE, provider);
                }
            }
        }
    }

    /// It is left to the client, which has a limit of its own.
    #[tokio::test]
    async fn a_file_that_cannot_be_opened_yet_holds_up_nobody() {
        let pipe = Pipe::new();
        let url = format!("postgres://h?sslmode=verify-full&sslrootcert={}", pipe.path.display());
        let mut configuring = pin!(config(&url));
        assert!(poll!(configuring.as_mut()).is_pending());
        configuring.await.unwrap();
        pipe.open().await;
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        for (url, reason) in [
            ("mysql://h/d", "scheme"),
            ("postgres://a,b/d", "one host"),
            ("postgres:", "one host"),
            ("postgres://h/a/b", "name of a database"),
            ("postgres://h?call_limit=0s", "at most 30s"),
            ("postgres://h?call_limit=31s", "at most 30s"),
            ("postgres://h?connections=1", "2 to 100"),
            ("postgres://h?connections=many", "connections"),
            ("postgres://h?sslrootcert=Cargo.toml", "`sslrootcert`: it is for"),
            ("postgres://h?sslmode=require&sslrootcert=Cargo.toml", "no certificate is checked"),
            ("postgres://h?schema=a%3Bb", "no digit first"),
            ("postgres://h?schema=1a", "no digit first"),
            ("postgres://h?schema=", "no digit first"),
            ("postgres://h?observe=maybe", "observe"),
            ("postgres://h?sslmode=maybe", "sslmode"),
            (
                "postgres://h?sslmode=verify-full&sslrootcert=/no/such/file",
                "`sslrootcert`: /no/such/file: ",
            ),
            ("postgres://h?sslcert=/no/such/file", "/no/such/file: "),
            ("postgres://h?sslkey=/no/such/file", "/no/such/file: "),
            ("postgres://h?hold=session", "the other driver"),
            ("postgres://h?hold=on", "`lease` or `session`"),
            ("postgres://h?fast=1", "known are: namespace, ttl, label, max_hold, call_limit"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn a_url_of_sessions_says_what_they_lock_and_for_how_long() {
        let config =
            async |url: &str| SessionConfig::from_url(&url.parse().unwrap(), &CAPABILITIES).await;
        let plain = config("postgres://h/d?hold=session").await.unwrap();
        assert_eq!((plain.hold.ttl, plain.hold.keys), (Duration::from_secs(30), Keys::Hashed));
        let full =
            config("postgres://me:hunter2@h/d?hold=session&ttl=2s&keys=exact").await.unwrap();
        assert_eq!((full.hold.ttl, full.hold.keys), (Duration::from_secs(2), Keys::Exact));
        assert!(!format!("{full:?}").contains("hunter2"), "{full:?}");
        for (url, reason) in [
            ("postgres://h", "the other driver"),
            ("postgres://h?hold=session&keys=mine", "`hashed` or `exact`"),
            ("postgres://h?hold=session&waiting_sessions=101", "0 to 100"),
            ("postgres://h?hold=session&ttl=100ms", "kept for 500ms to"),
            ("postgres://h?hold=session&connections=4", "known are"),
        ] {
            let error = config(url).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
