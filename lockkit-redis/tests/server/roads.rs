//! Servers that are reached over TLS or a socket, by users with no more rights than they need.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Change, Driver, Release};
use lockkit_redis::RedisDriver;
use lockkit_testkit::{Authority, REDIS, Server, Unavailable, trial};

use crate::support::{
    LONG, Raw, causes, claim, driver, impatient_driver, kind, listen, socket, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_verified_server_is_used", || with_tls("127.0.0.1", "no"), verified),
        trial("another_authority_is_refused", || with_tls("127.0.0.1", "no"), another_authority),
        trial("another_host_is_refused", || with_tls("redis.example", "no"), another_host),
        trial("a_client_shows_its_certificate", || with_tls("127.0.0.1", "yes"), client),
        trial("a_client_shows_its_certificate_in_the_tls_before", tls_1_2, client),
        trial(
            "a_certificate_that_was_replaced_is_shown",
            || with_tls("127.0.0.1", "yes"),
            replaced_certificate,
        ),
        trial("tls_and_none_do_not_meet", || with_tls("127.0.0.1", "no"), other_protocol),
        trial("a_connection_with_tls_is_made_anew", || with_tls("127.0.0.1", "no"), restarted),
        trial("a_socket_leads_to_a_database", || REDIS.start(), over_a_socket),
        trial("a_missing_socket_is_unreachable", || Ok(()), missing_socket),
    ]
}

/// A server that speaks nothing but TLS at its port, shows a certificate for `host`, and may ask
/// its clients for theirs.
fn with_tls(host: &str, asks_clients: &str) -> Result<(Server, Authority), Unavailable> {
    with_versions_of_tls(host, asks_clients, "TLSv1.2 TLSv1.3")
}

/// The server says what it thinks of a certificate before the client is done connecting.
fn tls_1_2() -> Result<(Server, Authority), Unavailable> {
    with_versions_of_tls("127.0.0.1", "yes", "TLSv1.2")
}

fn with_versions_of_tls(
    host: &str,
    asks_clients: &str,
    versions: &str,
) -> Result<(Server, Authority), Unavailable> {
    let authority = Authority::new(&REDIS)?;
    let identity = authority.server(host).unwrap();
    let file = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (roots, certificate) = (file(authority.certificate()), file(identity.certificate));
    let server = REDIS.start_with(&[
        "--port",
        "0",
        "--tls-port",
        "{port}",
        "--tls-ca-cert-file",
        &roots,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &file(identity.key),
        "--tls-auth-clients",
        asks_clients,
        "--tls-protocols",
        versions,
    ])?;
    Ok((server, authority))
}

fn trusting(server: &Server, authority: &Authority) -> String {
    format!("rediss://{}?cacert={}", server.addr(), authority.certificate().display())
}

async fn refused(url: &str) -> Error {
    RedisDriver::connect(&url.parse().unwrap()).await.unwrap_err()
}

async fn misconfigured(url: &str) -> String {
    let error = refused(url).await;
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    causes(&error)
}

async fn verified((server, authority): (Server, Authority)) {
    let driver = driver(&trusting(&server, &authority)).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)), "news come over TLS");
    assert_eq!(driver.release(&waiter).await.unwrap(), Release::Freed);
}

async fn another_authority((server, _): (Server, Authority)) {
    let another = Authority::new(&REDIS).unwrap();
    let told = misconfigured(&trusting(&server, &another)).await;
    assert!(told.contains("certificate") && told.contains("UnknownIssuer"), "{told}");
    let told = misconfigured(&format!("rediss://{}", server.addr())).await;
    assert!(told.contains("UnknownIssuer"), "the system does not trust it either: {told}");
}

async fn another_host((server, authority): (Server, Authority)) {
    let told = misconfigured(&trusting(&server, &authority)).await;
    assert!(told.contains("certificate") && told.contains("redis.example"), "{told}");
}

async fn client((server, authority): (Server, Authority)) {
    let url = trusting(&server, &authority);
    let showing = |authority: &Authority| {
        let identity = authority.client("app").unwrap();
        format!("{url}&cert={}&key={}", identity.certificate.display(), identity.key.display())
    };
    let driver = RedisDriver::connect(&showing(&authority).parse().unwrap()).await.unwrap();
    take(&driver, &claim(LONG)).await;
    for wrong in [url.clone(), showing(&Authority::new(&REDIS).unwrap())] {
        let error = refused(&wrong).await;
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        assert!(causes(&error).contains("alert"), "{error:?}");
    }
}

/// The server comes to accept the certificates of another authority alone, as it accepts those alone
/// that have not run out.
async fn replaced_certificate((server, authority): (Server, Authority)) {
    let (next, shown) = (Authority::new(&REDIS).unwrap(), authority.client("app").unwrap());
    let new = next.client("app").unwrap();
    let (certificate, key) = (&shown.certificate, &shown.key);
    let url = trusting(&server, &authority);
    let url = format!("{url}&cert={}&key={}", certificate.display(), key.display());
    let driver = impatient_driver(&format!("{url}&call_limit=2s")).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    let mut raw = Raw::connect(&format!("unix://{}", socket(&server).display())).await;
    let cut = ["CLIENT", "KILL", "SKIPME", "yes"];
    let renewed = async || {
        while let Err(error) = driver.renew(&holder).await {
            assert!(error.kind().is_transient(), "{error:?}");
        }
        assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
        crate::support::refused(&driver, &waiter).await;
    };

    // What is half written leaves what there was.
    fs::write(certificate, "-----BEGIN CERTIFICATE-----").unwrap();
    raw.ask::<()>(&cut).await;
    renewed().await;

    // The certificate is there, and the key to it is not yet.
    let trusted = next.certificate();
    let trusted = trusted.to_str().unwrap();
    raw.ask::<()>(&["CONFIG", "SET", "tls-ca-cert-file", trusted]).await;
    fs::copy(&new.certificate, certificate).unwrap();
    raw.ask::<()>(&cut).await;
    loop {
        let (kind, text) = kind(driver.renew(&holder).await);
        assert!(kind.is_transient(), "{text}");
        if text.contains("alert") {
            break assert!(text.contains(certificate.to_str().unwrap()), "{text}");
        }
    }
    fs::copy(&new.key, key).unwrap();
    renewed().await;
    driver.release(&holder).await.unwrap();
    take(&driver, &waiter).await;
}

async fn other_protocol((server, authority): (Server, Authority)) {
    let error = refused(&format!("redis://{}", server.addr())).await;
    assert!(matches!(error, Error::Unreachable(_)), "it hangs up: {error:?}");
    assert!(causes(&error).contains("hung up without an answer"), "{error:?}");
    let plain = REDIS.start().unwrap();
    let error = refused(&trusting(&plain, &authority)).await;
    assert!(matches!(error, Error::Unreachable(_)), "it waits for a line: {error:?}");
    assert!(causes(&error).contains("the server does not answer TLS"), "{error:?}");
}

async fn restarted((server, authority): (Server, Authority)) {
    let driver = driver(&trusting(&server, &authority)).await;
    let waiter = claim(LONG).fair();
    take(&driver, &claim(LONG)).await;
    listen(&driver, &waiter).await;
    server.restart().unwrap();
    assert_eq!(driver.changed(&waiter).await, Change::AskAgain);
    take(&driver, &waiter).await;
}

async fn over_a_socket(server: Server) {
    let url = format!("redis+unix://{}?db=2", socket(&server).display());
    let driver = driver(&url).await;
    let (holder, waiter) = (claim(LONG), claim(LONG).fair());
    take(&driver, &holder).await;
    listen(&driver, &waiter).await;
    driver.release(&holder).await.unwrap();
    assert!(matches!(driver.changed(&waiter).await, Change::Granted(_)));
    let mut raw = Raw::connect(&server.url()).await;
    assert_eq!(raw.keys().await, Vec::<String>::new());
    assert_eq!(Raw::connect(&format!("{}/2", server.url())).await.keys().await.len(), 1);

    // A user's password is asked for there as well.
    raw.ask::<()>(&["CONFIG", "SET", "requirepass", "pw"]).await;
    let at = |user: &str| format!("unix://{user}{}", socket(&server).display());
    assert!(matches!(refused(&at("")).await, Error::Denied(_)));
    let denied = refused(&at("default:wrong@")).await;
    assert!(matches!(denied, Error::Denied(_)) && !format!("{denied:?}").contains("wrong"));
    RedisDriver::connect(&at("default:pw@").parse().unwrap()).await.unwrap();
}

async fn missing_socket((): ()) {
    let error = refused("redis+unix:///no/such/socket").await;
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(causes(&error).contains("No such file"), "{error:?}");
}
