//! A majority of Redis servers that are reached over TLS.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::process::ExitCode;

use lockkit_testkit::{Authority, REDIS, Server, Unavailable, trial};

fn main() -> ExitCode {
    lockkit_testkit::run(vec![trial("a_majority_is_reached_over_tls", three_with_tls, over_tls)])
}

/// Servers that speak nothing but TLS at their ports.
fn three_with_tls() -> Result<(Vec<Server>, Authority), Unavailable> {
    let authority = Authority::new(&REDIS)?;
    let identity = authority.server("127.0.0.1").unwrap();
    let files = [authority.certificate(), identity.certificate, identity.key];
    let [roots, certificate, key] = files.map(|file| file.to_str().unwrap().to_owned());
    let settings = [
        ["--port", "0"],
        ["--tls-port", "{port}"],
        ["--tls-ca-cert-file", &roots],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-auth-clients", "no"],
    ];
    let servers = (0..3).map(|_| REDIS.start_with(settings.as_flattened()));
    Ok((servers.collect::<Result<_, _>>()?, authority))
}

async fn over_tls((servers, authority): (Vec<Server>, Authority)) {
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    let (hosts, roots) = (hosts.join(","), authority.certificate());
    let parameters = format!("cacert={}&delayed_restart=false", roots.display());
    let locker = lockkit::connect(&format!("redlocks://{hosts}?{parameters}")).await.unwrap();
    let guard = locker.lock("a").unwrap().acquire().await.unwrap();
    guard.release().await.unwrap();
    lockkit::connect(&format!("redlock://{hosts}?delayed_restart=false")).await.unwrap_err();
}
