//! What private servers of a run tell about themselves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use lockkit_compare::servers::{Backend, Servers};
use lockkit_testkit::{Unavailable, trial};
use tokio::time::sleep;

const PAIRS: u64 = 20;

fn main() -> ExitCode {
    let backends = [
        Backend::Postgres,
        Backend::Mariadb,
        Backend::Redis,
        Backend::Redlock(3),
        Backend::ZooKeeper(1),
        Backend::Etcd(1),
    ];
    let of_servers = backends.map(|backend| {
        let name = backend.names().1;
        let name = format!("{name}_tells_the_requests_of_each_pair_and_what_it_uses");
        trial(&name, move || start(backend), tells_what_it_is_asked)
    });
    let embedded = trial("without_servers_there_is_nothing_to_tell", || Ok(()), nothing_to_tell);
    lockkit_testkit::run(of_servers.into_iter().chain([embedded]).collect())
}

fn start(backend: Backend) -> Result<Servers, Unavailable> {
    Servers::start(backend).map_err(|error| *error.downcast::<Unavailable>().unwrap())
}

async fn tells_what_it_is_asked(servers: Servers) {
    let is_quorum = matches!(servers.backend(), Backend::Redlock(_));
    // A node that is slow on a machine under load would not be asked at all.
    let patience = if is_quorum { "&node_timeout=10s" } else { "" };
    let locker = lockkit::connect(&(servers.url() + patience)).await.unwrap();
    // A majority is there; the others may be about to be.
    while servers.usage().unwrap().connections < servers.urls().len() as u64 {
        sleep(Duration::from_millis(5)).await;
    }
    let lock = locker.lock("pair").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();

    let before = servers.usage().unwrap();
    // What counts PostgreSQL's statements need not be installed.
    if let Some(count) = servers.count().await.unwrap() {
        for _ in 0..PAIRS {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        if is_quorum {
            // Nobody waits for the last node, and no event tells when it is through. Whoever asks it is counted.
            sleep(Duration::from_secs(1)).await;
        }
        let a_pair = count.end().await.unwrap() as f64 / PAIRS as f64;
        let at_least = match servers.backend() {
            Backend::Redlock(servers) => 2.0 * servers as f64,
            // A node, a list of nodes, and no node.
            Backend::ZooKeeper(_) => 3.0,
            _ => 2.0,
        };
        assert!((at_least..at_least + 0.5).contains(&a_pair), "{a_pair} requests a pair");
    } else {
        assert_eq!(servers.backend(), Backend::Postgres);
    }
    let usage = servers.usage().unwrap();
    assert!(usage.cpu >= before.cpu, "{usage:?} after {before:?}");
    assert!(usage.memory > 1 << 20, "{usage:?}");
    assert!(usage.connections >= servers.urls().len() as u64, "{usage:?}");
    locker.shutdown().await;
}

async fn nothing_to_tell((): ()) {
    let servers = Servers::start(Backend::File).unwrap();
    assert!(servers.count().await.unwrap().is_none());
    let usage = servers.usage().unwrap();
    assert_eq!((usage.memory, usage.connections), (0, 0));
}
