use std::net::SocketAddr;
use std::time::Duration;

use lockkit_testkit::{
    Backend as Program, ETCD, Ensemble, MARIADB, POSTGRES, REDIS, Server, Unavailable, ZOOKEEPER,
};

/// Servers, and how to reach them through proxies.
pub(crate) struct Backend {
    servers: Servers,
    /// Of the holds.
    pub(crate) ttl: Duration,
    /// What the URL says besides.
    parameters: &'static str,
}

enum Servers {
    /// Of several, a majority is asked.
    Apart(Vec<Server>),
    Together(Ensemble),
}

const SHORT: Duration = Duration::from_secs(2);

const BY_SESSION: &str = "&hold=session";

/// A Redis that remembers what it has acknowledged.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

impl Backend {
    pub(crate) fn redis() -> Result<Self, Unavailable> {
        let servers = Servers::Apart(vec![REDIS.start_with(&DURABLE)?]);
        Ok(Self::of(servers))
    }

    pub(crate) fn redlock() -> Result<Self, Unavailable> {
        let servers = (0..3).map(|_| REDIS.start_with(&DURABLE));
        let servers = Servers::Apart(servers.collect::<Result<_, _>>()?);
        // They forget nothing.
        Ok(Self { parameters: "&delayed_restart=false", ..Self::of(servers) })
    }

    pub(crate) fn postgres() -> Result<Self, Unavailable> {
        Self::one(&POSTGRES)
    }

    pub(crate) fn mariadb() -> Result<Self, Unavailable> {
        Self::one(&MARIADB)
    }

    pub(crate) fn postgres_sessions() -> Result<Self, Unavailable> {
        Ok(Self { parameters: BY_SESSION, ..Self::postgres()? })
    }

    /// They last for 3 seconds at least.
    pub(crate) fn mariadb_sessions() -> Result<Self, Unavailable> {
        Ok(Self { parameters: BY_SESSION, ttl: SHORT * 2, ..Self::mariadb()? })
    }

    /// Its sessions last for 4 seconds at least.
    pub(crate) fn zookeeper() -> Result<Self, Unavailable> {
        Ok(Self { ttl: SHORT * 2, ..Self::three(&ZOOKEEPER)? })
    }

    pub(crate) fn etcd() -> Result<Self, Unavailable> {
        Self::three(&ETCD)
    }

    fn of(servers: Servers) -> Self {
        Self { servers, ttl: SHORT, parameters: "" }
    }

    fn one(program: &'static Program) -> Result<Self, Unavailable> {
        Ok(Self::of(Servers::Apart(vec![program.start()?])))
    }

    fn three(program: &'static Program) -> Result<Self, Unavailable> {
        Ok(Self::of(Servers::Together(program.start_ensemble(3)?)))
    }

    pub(crate) fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::Apart(servers) => servers,
            Servers::Together(ensemble) => ensemble.members(),
        }
    }

    /// Whether a hold outlives a connection, so that nobody believes in one that is over.
    pub(crate) fn keeps_holds(&self) -> bool {
        self.parameters != BY_SESSION
    }

    /// Whether a leader that was stopped and replaced can go on without harm. An etcd of before 3.4.31
    /// or 3.5.13 ends leases then that the next leader keeps alive, and no client can help it
    /// (<https://github.com/etcd-io/etcd/issues/15247>).
    pub(crate) async fn has_sound_leaders(&self) -> bool {
        const FAULT: &str = "a leader that was replaced may end leases";
        let addresses: Vec<_> = self.servers().iter().map(Server::addr).collect();
        let locker = lockkit::connect(&self.url_at(&addresses)).await.unwrap();
        let found = locker.diagnose().await.unwrap();
        locker.shutdown().await;
        !found.iter().any(|diagnosis| diagnosis.finding().contains(FAULT))
    }

    /// Which of the servers leads the others.
    pub(crate) fn leader(&self) -> Option<usize> {
        match &self.servers {
            Servers::Apart(_) => None,
            Servers::Together(ensemble) => Some(ensemble.leader()),
        }
    }

    /// The URL of lockkit, with an address for each server.
    pub(crate) fn url_at(&self, addresses: &[SocketAddr]) -> String {
        let url = match &self.servers {
            Servers::Apart(servers) if servers.len() == 1 => servers[0].url_at(addresses[0]),
            Servers::Apart(_) => {
                let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                format!("redlock://{}", hosts.join(","))
            }
            Servers::Together(ensemble) => {
                let ports: Vec<_> = addresses.iter().map(SocketAddr::port).collect();
                ensemble.url_at(&ports)
            }
        };
        let joint = if url.contains('?') { '&' } else { '?' };
        format!("{url}{joint}ttl={}ms{}", self.ttl.as_millis(), self.parameters)
    }
}
