//! What is measured as the floor has as many bytes as what lockkit sends, where one server is enough.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use lockkit_compare::hired::Hired;
use lockkit_compare::run::Role;
use lockkit_compare::subject::Subject;
use lockkit_testkit::{Backend, ETCD, MARIADB, POSTGRES, Proxy, REDIS, Server, ZOOKEEPER, trial};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkit-compare");
const PAIRS: u64 = 2_000;
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let floors: [(&str, &'static Backend, &str); 7] = [
        ("redis", &REDIS, ""),
        ("postgres", &POSTGRES, ""),
        ("postgres-session", &POSTGRES, "?hold=session"),
        ("mariadb", &MARIADB, ""),
        ("mariadb-session", &MARIADB, "?hold=session"),
        ("zookeeper", &ZOOKEEPER, ""),
        ("etcd", &ETCD, ""),
    ];
    let as_long = floors.map(|(floor, backend, settings)| {
        trial(
            &format!("{floor}_is_sent_as_much_by_hand"),
            || backend.start(),
            move |server| as_much(server, floor, settings),
        )
    });
    lockkit_testkit::run(as_long.into())
}

/// Numbers of processes and of requests may differ by a digit, and a connection has frames of its
/// own.
async fn as_much(server: Server, floor: &'static str, settings: &'static str) {
    let proxy = Proxy::start(server.addr()).await;
    let url = server.url_at(proxy.addr());
    let own = sent(&proxy, &["agent", "lockkit"], url.clone() + settings).await;
    let by_hand = sent(&proxy, &["floor", floor], url).await;
    assert!(
        own.abs_diff(by_hand) <= by_hand / 50,
        "{PAIRS} pairs: {own} bytes, and {by_hand} by hand"
    );
}

/// How many bytes an agent's requests have.
async fn sent(proxy: &Proxy, program: &[&str], url: String) -> u64 {
    let subject = Subject {
        name: program.join(" "),
        role: Role::Lockkit,
        agent: [PROGRAM].iter().chain(program).map(Into::into).collect(),
        urls: vec![url],
        compiles_as_it_runs: false,
    };
    let mut agent = Hired::start(&subject, Duration::from_secs(30), LIMIT).await.unwrap();
    let mut count = async |pairs: u64| {
        let before = proxy.requests().bytes();
        let answer = agent.ask(&format!("uncontended x {pairs}"), LIMIT).await.unwrap();
        assert_eq!(answer["nanoseconds"].as_array().unwrap().len() as u64, pairs);
        proxy.requests().bytes() - before
    };
    // What only a first use takes, and then what connections take, more or less.
    _ = count(1).await;
    let (few, many) = (count(1).await, count(1 + PAIRS).await);
    agent.end().await.unwrap();
    many - few
}
