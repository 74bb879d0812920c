//! The conformance suite, against one Redis, by each of the ways that lead there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lockkit_conformance::Suite;
use lockkit_core::{BoxError, Capabilities};
use lockkit_redis::{CAPABILITIES, PLAIN_CAPABILITIES};
use lockkit_testkit::{Authority, REDIS, Server, Unavailable};
use redis::{FromRedisValue, cmd};

#[path = "server/documented.rs"]
mod documented;
#[path = "server/patient.rs"]
mod patient;

fn main() -> ExitCode {
    static NETWORK: Way = Way::new("redis", network);
    static TLS: Way = Way::new("redis-tls", tls);
    static SOCKET: Way = Way::new("redis-unix", socket);
    static PLAIN: Way = Way::new("redis-plain", plain);

    let mut arguments = Arguments::from_args();
    // They mostly wait, and there are several servers.
    arguments.test_threads.get_or_insert(20);
    let mut trials = NETWORK.suite(CAPABILITIES).trials();
    trials.extend(PLAIN.suite(PLAIN_CAPABILITIES).trials());
    for way in [&TLS, &SOCKET] {
        trials.extend(way.suite(CAPABILITIES).trials().into_iter().filter(concerns_connections));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What is left out is about the engine, to which all ways are one.
fn concerns_connections(check: &Trial) -> bool {
    ["::driver::", "_cut", "_restart", "_answer"].iter().any(|part| check.name().contains(part))
}

/// A way to a server.
struct Way {
    name: &'static str,
    place: LazyLock<Result<Place, Unavailable>>,
}

/// A server, and the URL by which the driver gets there; parameters may follow it.
struct Place {
    server: Server,
    url: String,
    /// Whose certificates are used. They are files that go with it.
    _authority: Option<Authority>,
}

impl Way {
    const fn new(name: &'static str, place: fn() -> Result<Place, Unavailable>) -> Self {
        Self { name, place: LazyLock::new(place) }
    }

    fn suite(&'static self, capabilities: Capabilities) -> Suite {
        Suite::new("redis", capabilities)
            .called(self.name)
            .skip_unless(move || self.place().map(|_| ()))
            .connect(move || async {
                // The default limit for the shortest leases is too short for a machine under load.
                let url = format!("{}call_limit=5s", self.place()?.url);
                Ok(patient::driver(&url).await?)
            })
            .revoke(move |name| async move {
                let keys: Vec<String> = self.ask(&["KEYS", "*"]).await?;
                let suffixes = [format!(":lock:{name}"), format!("conformance:{name}")];
                let is_it = |key: &&String| suffixes.iter().any(|suffix| key.ends_with(suffix));
                for key in keys.iter().filter(is_it) {
                    self.ask::<()>(&["DEL", key]).await?;
                }
                Ok(())
            })
            .sever(move || async {
                self.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await?;
                self.ask::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await
            })
            .silence(
                move || async { Ok(self.place()?.server.stop()?) },
                move || async { Ok(self.place()?.server.cont()?) },
            )
            .restart(move || async {
                self.place()?.server.restart()?;
                Ok(())
            })
            .ttl(Duration::from_millis(1000))
    }

    fn place(&self) -> Result<&Place, BoxError> {
        self.place.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    /// As an administrator, in the database that the driver uses.
    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, BoxError> {
        let socket = self.place()?.server.data().join("redis.sock");
        let database = if self.name == "redis-unix" { 2 } else { 0 };
        let url = format!("redis+unix://{}?db={database}", socket.display());
        let mut connection = patient::client(&url).await?;
        Ok(cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await?)
    }
}

fn network() -> Result<Place, Unavailable> {
    let server = REDIS.start()?;
    Ok(Place { url: format!("{}?", server.url()), server, _authority: None })
}

/// Nothing but TLS, clients show a certificate, and the user has the rights that are documented.
fn tls() -> Result<Place, Unavailable> {
    let authority = Authority::new(&REDIS)?;
    let (shown, client) =
        (authority.server("127.0.0.1").unwrap(), authority.client("app").unwrap());
    let roots = authority.certificate();
    let [roots, certificate, key] =
        [&roots, &shown.certificate, &shown.key].map(|file| file.to_str().unwrap());
    let rights = documented::rights("conformance");
    let rights = rights.iter().take(2).flatten().map(String::as_str);
    let mut arguments = vec!["--port", "0", "--tls-port", "{port}", "--tls-ca-cert-file", roots];
    arguments.extend(["--tls-cert-file", certificate, "--tls-key-file", key, "--user", "app"]);
    arguments.extend(rights);
    let server = REDIS.start_with(&arguments)?;
    let url = format!(
        "rediss://app:pw@{}?cacert={roots}&cert={}&key={}&",
        server.addr(),
        client.certificate.display(),
        client.key.display(),
    );
    Ok(Place { server, url, _authority: Some(authority) })
}

fn socket() -> Result<Place, Unavailable> {
    let server = REDIS.start()?;
    let socket = server.data().join("redis.sock");
    Ok(Place { url: format!("redis+unix://{}?db=2&", socket.display()), server, _authority: None })
}

fn plain() -> Result<Place, Unavailable> {
    let server = REDIS.start()?;
    Ok(Place { url: format!("{}?dialect=plain&", server.url()), server, _authority: None })
}
