use std::io;
use std::time::Duration;

use super::REDIS;
use super::ask::{ask, wait_until};
use super::encryption::{self, Encryption, Reached};
use crate::port::at_free_port;
use crate::{Server, Unavailable};

/// How many slots keys are spread over.
const SLOTS: u16 = 16_384;

/// A cluster of three Redis servers that have a third of the slots each, and three that replicate
/// one of them each. They end when it is dropped.
#[derive(Debug)]
pub struct RedisCluster {
    /// Those that had slots at first come first.
    members: Vec<Server>,
    /// The ports at which clients and members reach them.
    ports: Vec<u16>,
    encryption: Option<Encryption>,
}

impl RedisCluster {
    /// Starts it. A primary that does not answer for `patience` is replaced, which takes one to two
    /// seconds more.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start(patience: Duration) -> Result<Self, Unavailable> {
        Self::start_reached_by(None, patience)
    }

    /// The same, but clients reach the members by TLS, as the members do each other.
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
        let patience = patience.as_millis().to_string();
        let mut arguments =
            vec!["--cluster-node-timeout", &patience, "--repl-diskless-sync-delay", "0"];
        if encryption.is_some() {
            arguments.extend(["--tls-cluster", "yes"]);
        }
        let (mut members, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let Reached { server, port } = start_member(encryption.as_ref(), &arguments)?;
            members.push(server);
            ports.push(port);
        }
        let cluster = Self { members, ports, encryption };
        cluster.introduce().map_err(|error| REDIS.failed(&error, cluster.members[0].log_tail()))?;
        Ok(cluster)
    }

    /// Starts one server that may become a member of a cluster, and that knows no other yet.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start_member(arguments: &[&str]) -> Result<Server, Unavailable> {
        Ok(self::start_member(None, arguments)?.server)
    }

    /// Its members, in no order.
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// The URL that names all members.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let url = format!("redis+cluster://{}", hosts.join(","));
        encryption::url(self.encryption.as_ref(), url)
    }

    /// The port at which clients reach a member.
    pub fn port(&self, member: usize) -> u16 {
        self.ports[member]
    }

    /// The index of the member that has the slot, as the others see it.
    ///
    /// # Panics
    /// If they do not agree within 120 s.
    pub fn owner(&self, slot: u16) -> usize {
        let mut owner = None;
        wait_until("agreement on a slot", || {
            let mut owners = self.running().filter_map(|member| {
                let nodes = ask(member.port(), "CLUSTER NODES").ok()?;
                let line = nodes.lines().find(|line| has(line, slot))?;
                self.position(line)
            });
            owner = owners.next();
            Ok(owner.is_some() && owners.all(|other| Some(other) == owner))
        })
        .unwrap_or_else(|error| panic!("{error}"));
        owner.unwrap_or_default()
    }

    /// Makes a replica a primary that has no slot yet.
    ///
    /// # Panics
    /// If it refuses, or does not get to know the others within 120 s.
    pub fn free_replica(&self, replica: usize) {
        self.tell(replica, "CLUSTER RESET");
        wait_until("acquaintance", || {
            let nodes = ask(self.members[replica].port(), "CLUSTER NODES")?;
            let links = nodes.lines().filter(|line| line.contains(" connected")).count();
            Ok(self.has_met_all()? && links == self.members.len())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Begins to move a slot to the member of that index, without moving a key.
    ///
    /// # Panics
    /// If the members refuse.
    pub fn begin_to_move(&self, slot: u16, to: usize) {
        let from = self.owner(slot);
        let [from_id, to_id] = [from, to].map(|at| self.id(at));
        self.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        self.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
    }

    /// Moves this key of a slot that is being moved.
    ///
    /// # Panics
    /// If the members refuse.
    pub fn move_key(&self, slot: u16, to: usize, key: &str) {
        let port = self.members[to].port();
        self.tell(self.owner(slot), &format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
    }

    /// Ends the move of a slot, whose keys have all been moved.
    ///
    /// # Panics
    /// If the members refuse.
    pub fn end_move(&self, slot: u16, to: usize) {
        let (from, id) = (self.owner(slot), self.id(to));
        self.tell(to, &format!("CLUSTER SETSLOT {slot} NODE {id}"));
        self.tell(from, &format!("CLUSTER SETSLOT {slot} NODE {id}"));
    }

    /// The members that are not killed.
    fn running(&self) -> impl Iterator<Item = &Server> {
        self.members.iter().filter(|member| member.pid().is_some())
    }

    fn id(&self, at: usize) -> String {
        own_id(&self.members[at]).unwrap_or_else(|error| panic!("{error}"))
    }

    fn tell(&self, at: usize, command: &str) -> String {
        ask(self.members[at].port(), command).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Which member a line of `CLUSTER NODES` is about.
    fn position(&self, line: &str) -> Option<usize> {
        let port = line.split(' ').nth(1)?.split(['@', ':']).nth(1)?.parse().ok()?;
        self.members.iter().position(|member| member.port() == port)
    }

    /// Has the first member meet the others, unless they know each other: a member gives up a
    /// meeting that takes longer than its patience.
    fn has_met_all(&self) -> io::Result<bool> {
        let first = &self.members[0];
        let knows = |one: &Server, other: &Server| -> io::Result<bool> {
            Ok(ask(one.port(), "CLUSTER NODES")?.contains(&own_id(other)?))
        };
        let mut has_met_all = true;
        for (other, port) in self.members.iter().zip(&self.ports).skip(1) {
            if !(knows(first, other)? && knows(other, first)?) {
                has_met_all = false;
                let bus = ask(other.port(), "CONFIG GET cluster-port")?;
                let bus = super::ask::field(&bus, "cluster-port").unwrap_or_default().to_owned();
                ask(first.port(), &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
            }
        }
        Ok(has_met_all)
    }

    fn introduce(&self) -> io::Result<()> {
        // Otherwise two of them are even at first, and whichever settles that may take back a slot
        // that has been moved meanwhile.
        for (epoch, member) in (1..).zip(&self.members) {
            ask(member.port(), &format!("CLUSTER SET-CONFIG-EPOCH {epoch}"))?;
        }
        wait_until("acquaintance", || self.has_met_all())?;
        let thirds = [0, SLOTS / 3, 2 * (SLOTS / 3), SLOTS];
        for (primary, ends) in self.members.iter().zip(thirds.windows(2)) {
            let (first, last) = (ends[0], ends[1] - 1);
            ask(primary.port(), &format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        }
        for (primary, replica) in self.members[..3].iter().zip(&self.members[3..]) {
            let id = own_id(primary)?;
            // Refused until the two have met.
            wait_until("a meeting", || {
                ask(replica.port(), &format!("CLUSTER REPLICATE {id}")).map(|_| true)
            })?;
        }
        wait_until("the cluster", || {
            for member in &self.members {
                let info = ask(member.port(), "CLUSTER INFO")?;
                let nodes = ask(member.port(), "CLUSTER NODES")?;
                let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
                if !info.contains("cluster_state:ok") || replicas != 3 {
                    return Ok(false);
                }
            }
            let synced = self.members[..3].iter().map(|primary| {
                ask(primary.port(), "INFO replication").map(|told| told.contains("state=online"))
            });
            Ok(synced.collect::<io::Result<Vec<_>>>()?.into_iter().all(|synced| synced))
        })
    }
}

fn start_member(
    encryption: Option<&Encryption>,
    arguments: &[&str],
) -> Result<Reached, Unavailable> {
    let failed = |error: io::Error| REDIS.failed(&error, String::new());
    // By default the others reach it at its own port plus ten thousand, which is where the system
    // puts outgoing connections.
    at_free_port(failed, |bus| {
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()];
        encryption::start(&REDIS, encryption, &[&cluster, arguments].concat())
    })
}

fn own_id(member: &Server) -> io::Result<String> {
    let answer = ask(member.port(), "CLUSTER MYID")?;
    Ok(answer.lines().nth(1).unwrap_or_default().into())
}

/// Whether a line of `CLUSTER NODES` says that the member has the slot.
fn has(line: &str, slot: u16) -> bool {
    let mut words = line.split(' ');
    let is_primary = words.nth(2).is_some_and(|flags| flags.contains("master"));
    is_primary
        && words.skip(5).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse(), last.parse());
            matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        })
}
