//! What is measured as the floor has as many bytes as what lockkit sends, where one server is enough.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{ExitCode, Stdio};

use lockkit_testkit::{Backend, ETCD, MARIADB, POSTGRES, Proxy, REDIS, Server, ZOOKEEPER, trial};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkit-compare");
const PAIRS: u64 = 2_000;

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
    let own = sent(&proxy, &["agent", "lockkit", "30000", &(url.clone() + settings)]).await;
    let by_hand = sent(&proxy, &["floor", floor, "30000", &url]).await;
    assert!(
        own.abs_diff(by_hand) <= by_hand / 50,
        "{PAIRS} pairs: {own} bytes, and {by_hand} by hand"
    );
}

/// How many bytes an agent's requests have.
async fn sent(proxy: &Proxy, arguments: &[&str]) -> u64 {
    let mut agent = Agent::start(arguments);
    let mut count = async |pairs| {
        let before = proxy.requests().bytes();
        agent.takes_pairs(pairs).await;
        proxy.requests().bytes() - before
    };
    // What only a first use takes, and then what connections take, more or less.
    _ = count(1).await;
    let (few, many) = (count(1).await, count(1 + PAIRS).await);
    agent.ends().await;
    many - few
}

struct Agent {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, output }
    }

    async fn takes_pairs(&mut self, pairs: u64) {
        self.input.write_all(format!("uncontended x {pairs}\n").as_bytes()).await.unwrap();
        // The first line tells what is measured.
        loop {
            let line = self.output.next_line().await.unwrap().expect("it answers");
            let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(times) = answer.get("nanoseconds") {
                assert_eq!(times.as_array().unwrap().len() as u64, pairs, "{line}");
                return;
            }
            assert!(answer.get("error").or(answer.get("cannot")).is_none(), "{line}");
        }
    }

    async fn ends(self) {
        let Self { mut process, input, .. } = self;
        drop(input);
        assert!(process.wait().await.unwrap().success());
    }
}
