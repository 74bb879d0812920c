//! Servers that speak TLS.

use std::path::Path;

use libtest_mimic::Trial;
use lockkit_core::driver::{Change, Driver, Inspect, Release};
use lockkit_core::{Error, Grade, Namespace, Result};
use lockkit_testkit::{Authority, Identity, Server, Unavailable, ZOOKEEPER, free_port, trial};
use lockkit_zk::ZooKeeperDriver;
use tokio::time::timeout;

use crate::support::{causes, claim, driver, millis, refused, take, take_in_the_end, with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("locks_are_had_over_tls", || encrypted("none"), plain),
        trial(
            "what_servers_do_not_tell_is_found_out_over_tls",
            || encrypted("none\n4lw.commands.whitelist=srvr"),
            found_out,
        ),
        trial("a_client_shows_a_certificate", || encrypted("need"), certified),
        trial("a_server_that_is_not_trusted_is_not_used", || encrypted("none"), untrusted),
        trial("a_server_that_speaks_no_tls_is_not_used", || encrypted("none"), clear),
    ]
}

struct Encrypted {
    server: Server,
    authority: Authority,
    /// The URL of the port that speaks TLS.
    url: String,
}

/// With a second port, which speaks TLS.
fn encrypted(certificates: &str) -> std::result::Result<Encrypted, Unavailable> {
    let server = ZOOKEEPER.start()?;
    let authority = Authority::new(&ZOOKEEPER)?;
    let own = authority.server("127.0.0.1").unwrap();
    let store = server.data().join("server.pem");
    let both = [&own.key, &own.certificate].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&store, both.concat()).unwrap();
    let trusted = server.add_file(&authority.certificate(), "trusted.pem").unwrap();
    let port = free_port().unwrap();
    let settings = format!(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         secureClientPort={port}\n\
         secureClientPortAddress=127.0.0.1\n\
         ssl.keyStore.location={}\n\
         ssl.trustStore.location={}\n\
         ssl.clientAuth={certificates}\n",
        store.display(),
        trusted.display(),
    );
    std::fs::write(server.data().join("settings"), settings).unwrap();
    server.restart()?;
    let url = format!("zookeepers://127.0.0.1:{port}?ttl=4s");
    Ok(Encrypted { server, authority, url })
}

fn trusting(url: &str, authority: &Authority) -> String {
    file(url, "cacert", &authority.certificate())
}

fn file(url: &str, parameter: &str, file: &Path) -> String {
    with(url, &format!("{parameter}={}", file.display()))
}

fn showing(url: &str, Identity { certificate, key, .. }: &Identity) -> String {
    file(&file(url, "cert", certificate), "key", key)
}

async fn connect(url: &str) -> Result<ZooKeeperDriver> {
    ZooKeeperDriver::connect(&url.parse()?).await
}

async fn found_out(Encrypted { authority, url, .. }: Encrypted) {
    let ours = driver(&trusting(&url, &authority)).await;
    let findings = ours.diagnose(&Namespace::default()).await.unwrap();
    let finding = findings.iter().find(|finding| finding.topic() == "tick").unwrap();
    assert!(finding.finding().contains("bounds of sessions"), "{finding:?}");
}

async fn plain(Encrypted { server, authority, url }: Encrypted) {
    let (ours, clear) = (driver(&trusting(&url, &authority)).await, driver(&server.url()).await);
    let (held, waiting) = (claim(), claim().fair());
    let first = take(&ours, &held).await;
    refused(&clear, &waiting).await;
    refused(&ours, &claim()).await;
    assert_eq!(ours.release(&held).await.unwrap(), Release::Freed);
    assert!(matches!(clear.changed(&waiting).await, Change::Granted(_)));
    assert!(take(&clear, &waiting).await > first);
    // What is asked beside a session goes the same way.
    let findings = ours.diagnose(&Namespace::default()).await.unwrap();
    for topic in ["version", "servers", "tick"] {
        let finding = findings.iter().find(|finding| finding.topic() == topic).unwrap();
        assert_eq!(finding.grade(), Grade::Good, "{finding:?}");
    }
    assert_eq!(clear.release(&waiting).await.unwrap(), Release::Freed);
    // The session, or the next, is had over TLS again.
    server.restart().unwrap();
    take_in_the_end(&ours, &claim()).await;
}

async fn certified(Encrypted { authority, url, server: _server }: Encrypted) {
    let url = trusting(&url, &authority);
    let error = connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    let text = causes(&error);
    assert!(text.contains("encrypted") && text.to_lowercase().contains("cert"), "{text}");
    let ours = authority.client("worker").unwrap();
    let driver = driver(&showing(&url, &ours)).await;
    take(&driver, &claim()).await;
    assert!(!format!("{driver:?}").contains("PRIVATE"), "{driver:?}");
}

/// Neither where the authority is another one, nor where the certificate is for another host.
async fn untrusted(Encrypted { authority, url, server: _server }: Encrypted) {
    let other = Authority::new(&ZOOKEEPER).unwrap();
    let elsewhere = trusting(&url.replace("127.0.0.1", "localhost"), &authority);
    for (url, reason) in
        [(trusting(&url, &other), "UnknownIssuer"), (elsewhere, "not valid for name")]
    {
        for url in [url.clone(), with(&url, "tick=200ms")] {
            let error = connect(&url).await.unwrap_err();
            assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
            assert!(causes(&error).contains(reason), "{}", causes(&error));
        }
    }
}

async fn clear(Encrypted { server, authority, .. }: Encrypted) {
    let url = server.url().replace("zookeeper:", "zookeepers:");
    let connected = timeout(millis(5000), connect(&trusting(&url, &authority))).await;
    let error = connected.expect("it has a limit").unwrap_err();
    assert!(matches!(error, Error::Unreachable(_) | Error::Misconfigured(_)), "{error:?}");
}
