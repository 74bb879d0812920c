use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use super::ask::{ask, ask_for, field, wait_until};
use super::encryption::{self, Encryption, Reached};
use super::{PROGRAMS, REDIS};
use crate::{Backend, Server, Unavailable};

/// What the sentinels call the servers that they watch.
const GROUP: &str = "main";

/// One sentinel, which watches nothing yet.
static SENTINEL: Backend = Backend {
    id: "redis",
    url_variable: "LOCKKIT_TEST_REDIS_SENTINEL_URL",
    programs: PROGRAMS,
    folders: Vec::new,
    is_it: |_| true,
    prepare: |_, _, _| Ok(()),
    refuses_root: false,
    kill: Signal::KILL,
    arguments,
    is_ready,
    url: |port| url(&[port]),
    ensemble: None,
    shared: OnceLock::new(),
};

/// A Redis with two replicas, and three sentinels that make one of the replicas the primary when
/// the primary is gone. They end when it is dropped.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    /// The ports at which the servers are reached.
    ports: Vec<u16>,
    /// The ports at which clients reach the sentinels.
    ports_of_sentinels: Vec<u16>,
    encryption: Option<Encryption>,
}

impl RedisSentinels {
    /// Starts them. A primary that does not answer for `patience` is replaced, which takes a second
    /// more.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start(patience: Duration) -> Result<Self, Unavailable> {
        Self::start_reached_by(None, patience)
    }

    /// The same, but clients reach all of them by TLS, as they do each other.
    ///
    /// # Errors
    /// [`Unavailable`] if the program or `openssl` is missing or does not come up.
    pub fn start_with_tls(patience: Duration) -> Result<Self, Unavailable> {
        Self::start_reached_by(Some(Encryption::new()?), patience)
    }

    fn start_reached_by(
        encryption: Option<Encryption>,
        patience: Duration,
    ) -> Result<Self, Unavailable> {
        let start = |backend, arguments: &[&str]| {
            encryption::start(backend, encryption.as_ref(), arguments)
        };
        // A replica that asks for the data does not wait for others to ask as well.
        let primary = start(&REDIS, &["--repl-diskless-sync-delay", "0"])?;
        let port = primary.port.to_string();
        let of = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let servers = [primary, start(&REDIS, &of)?, start(&REDIS, &of)?];
        let sentinels =
            (0..3).map(|_| start(&SENTINEL, &[])).collect::<Result<Vec<_>, Unavailable>>()?;
        let apart = |Reached { server, port }| (server, port);
        let (servers, ports) = servers.into_iter().map(apart).unzip();
        let (sentinels, ports_of_sentinels) = sentinels.into_iter().map(apart).unzip();
        let set = Self { servers, sentinels, ports, ports_of_sentinels, encryption };
        set.introduce(patience)
            .map_err(|error| SENTINEL.failed(&error, set.sentinels[0].log_tail()))?;
        Ok(set)
    }

    /// The servers, in no order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The URL that names all sentinels.
    pub fn url(&self) -> String {
        self.url_at(&self.ports_of_sentinels)
    }

    /// The URL for whoever comes through proxies at these ports of 127.0.0.1.
    pub fn url_at(&self, ports: &[u16]) -> String {
        encryption::url(self.encryption.as_ref(), url(ports))
    }

    /// The index of the server that most sentinels call the primary.
    ///
    /// # Panics
    /// If they do not agree within 120 s.
    pub fn primary(&self) -> usize {
        let mut agreed = None;
        wait_until("agreement on a primary", || {
            let mut votes = vec![0; self.servers.len()];
            for sentinel in &self.sentinels {
                // Whoever is killed or stopped has no vote.
                const PATIENCE: Duration = Duration::from_millis(500);
                const QUESTION: &str = "SENTINEL GET-MASTER-ADDR-BY-NAME main";
                let answer = ask_for(PATIENCE, sentinel.port(), QUESTION).unwrap_or_default();
                let port = answer.lines().nth(4).and_then(|port| port.parse().ok());
                let voted = self.ports.iter().position(|known| Some(*known) == port);
                voted.into_iter().for_each(|at| votes[at] += 1);
            }
            agreed = votes.iter().position(|&votes| votes * 2 > self.sentinels.len());
            Ok(agreed.is_some())
        })
        .unwrap_or_else(|error| panic!("{error}"));
        agreed.unwrap_or_default()
    }

    /// Makes a replica the primary, whether or not the present one answers, and waits until the
    /// sentinels agree on it. Returns which it is.
    ///
    /// # Panics
    /// If they do not.
    pub fn fail_over(&self) -> usize {
        let before = self.primary();
        // Refused while it is still busy with an earlier one.
        wait_until("a failover", || {
            ask(self.sentinels[0].port(), "SENTINEL FAILOVER main").map(|_| true)
        })
        .and_then(|()| wait_until("a failover", || Ok(self.primary() != before)))
        .unwrap_or_else(|error| panic!("{error}"));
        self.primary()
    }

    fn introduce(&self, patience: Duration) -> io::Result<()> {
        let primary = self.ports[0];
        // A sentinel that does not see the replicas at first looks again after ten seconds.
        wait_until("replication", || {
            let answer = ask(self.servers[0].port(), "INFO replication")?;
            Ok(answer.matches("state=online").count() == self.servers.len() - 1)
        })?;
        for sentinel in &self.sentinels {
            let port = sentinel.port();
            // Since Redis 7. Without this they need a few seconds to find one another.
            ask(
                port,
                "SENTINEL DEBUG info-period 100 ping-period 100 ask-period 100 publish-period 50 \
                 slave-reconf-timeout 500 min-link-reconnect-period 100 election-timeout 500",
            )?;
            ask(port, &format!("SENTINEL MONITOR {GROUP} 127.0.0.1 {primary} 2"))?;
            let patience = patience.as_millis();
            ask(port, &format!("SENTINEL SET {GROUP} down-after-milliseconds {patience}"))?;
            // A failover that failed is tried again after twice as long, by default in six minutes.
            ask(port, &format!("SENTINEL SET {GROUP} failover-timeout 6000"))?;
        }
        wait_until("acquaintance", || {
            let knows = |sentinel: &Server| {
                let answer = ask(sentinel.port(), &format!("SENTINEL MASTER {GROUP}"))?;
                let is = |name, value| field(&answer, name) == Some(value);
                Ok::<_, io::Error>(is("num-slaves", "2") && is("num-other-sentinels", "2"))
            };
            let known: Vec<_> = self.sentinels.iter().map(knows).collect::<Result<_, _>>()?;
            Ok(known.into_iter().all(|known| known))
        })?;
        // A replica that has not answered for five pings, or not told how it is for three periods,
        // is not made the primary. And after four periods of publishing, a sentinel that has not
        // heard of a failover takes the new primary for a replica that has gone astray.
        for sentinel in &self.sentinels {
            ask(
                sentinel.port(),
                "SENTINEL DEBUG info-period 500 ping-period 1000 publish-period 2000",
            )?;
        }
        Ok(())
    }
}

fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+sentinel://{}/{GROUP}", hosts.join(","))
}

/// A sentinel writes what it learns into its file, and reads the file when it is restarted.
fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let file = data.join("sentinel.conf");
    // What an attempt at another port has left behind goes.
    let begins = format!("port {port}\n");
    if !fs::read_to_string(&file).is_ok_and(|known| known.contains(&begins)) {
        fs::write(&file, format!("{begins}bind 127.0.0.1\ndir {}\n", data.display()))?;
    }
    Ok(vec![file.display().to_string(), "--sentinel".into()])
}

/// Asks for the process id, because another test's server may have been faster at this port.
fn is_ready(port: u16, pid: u32, _: &Path) -> io::Result<bool> {
    let answer = ask_for(Duration::from_secs(1), port, "INFO server")?;
    Ok(answer.lines().any(|line| line == format!("process_id:{pid}")))
}
