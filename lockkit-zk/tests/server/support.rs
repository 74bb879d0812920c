use std::net::SocketAddr;
use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver, DriverError, ErrorKind, Grant, OwnerId};
use lockkit_core::{FencingToken, LockName, Namespace};
use lockkit_zk::ZooKeeperDriver;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode, Error, Stat};

pub(crate) const NAME: &str = "orders/{42} ü";

/// Where its nodes are.
pub(crate) const FOLDER: &str = "/lockkit/orders%2f%7b42%7d%20%c3%bc";

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A path of one's own on a server, and a plain client to look and to tamper.
pub(crate) struct Place {
    /// The URL of the path.
    pub(crate) url: String,
    pub(crate) raw: Client,
    root: String,
    addr: SocketAddr,
}

impl Place {
    /// On the server that this is the URL of; of several, on the first.
    pub(crate) async fn on(server: &str) -> Self {
        let addr = addr(server);
        let root = format!("/test-{}", OwnerId::random());
        let raw = Client::connect(&addr.to_string()).await.unwrap();
        Self { url: format!("zookeeper://{addr}{root}"), raw, root, addr }
    }

    /// With a folder for the lock that stays, so that taking it begins with the creation of a node.
    pub(crate) async fn made_on(server: &str) -> Self {
        let place = Self::on(server).await;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        place.raw.mkdir(&place.path(FOLDER), &options).await.unwrap();
        place
    }

    /// The URL of the path for whoever comes that way.
    pub(crate) fn url_by(&self, addr: SocketAddr) -> String {
        format!("zookeeper://{addr}{}", self.root)
    }

    /// A path below its root.
    pub(crate) fn path(&self, below: &str) -> String {
        [&self.root, below].concat()
    }

    /// The nodes of the lock, in no order.
    pub(crate) async fn nodes(&self) -> Vec<String> {
        let folder = self.path(FOLDER);
        self.raw.sync(&folder).await.unwrap();
        match self.raw.list_children(&folder).await {
            Err(Error::NoNode) => Vec::new(),
            listed => listed.unwrap(),
        }
    }

    /// Waits until the lock has so many nodes.
    pub(crate) async fn nodes_come_to(&self, number: usize) {
        while self.nodes().await.len() != number {
            sleep(millis(2)).await;
        }
    }

    /// What a node of the lock has.
    pub(crate) async fn node(&self, name: &str) -> (Vec<u8>, Stat) {
        self.raw.get_data(&format!("{}/{name}", self.path(FOLDER))).await.unwrap()
    }

    /// Removes a node of the lock by a strange hand.
    pub(crate) async fn remove(&self, name: &str) {
        let path = [&self.path(FOLDER), "/", name].concat();
        self.raw.delete(&path, None).await.unwrap();
    }

    /// The nodes of the lock that are watched, each as often as sessions watch it.
    pub(crate) async fn watched(&self) -> Vec<String> {
        let told = self.ask("wchp").await;
        let (mut watched, mut path) = (Vec::new(), "");
        for line in told.lines() {
            match line.starts_with('\t') {
                true => watched.extend(path.strip_prefix(&self.root).map(String::from)),
                false => path = line,
            }
        }
        watched
    }

    /// Waits until as many nodes are watched.
    pub(crate) async fn watches_come_to(&self, number: usize) {
        while self.watched().await.len() != number {
            sleep(millis(2)).await;
        }
    }

    /// Waits until as many nodes are watched, or more.
    pub(crate) async fn watches_reach(&self, number: usize) {
        while self.watched().await.len() < number {
            sleep(millis(2)).await;
        }
    }

    /// How many packets the server has received.
    pub(crate) async fn packets(&self) -> usize {
        let told = self.ask("mntr").await;
        let number = told.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        number.unwrap().trim().parse().unwrap()
    }

    /// The server's answer to a command of four letters.
    pub(crate) async fn ask(&self, command: &str) -> String {
        ask(self.addr, command).await
    }
}

/// Of the server that this is the URL of, or of the first.
pub(crate) fn addr(server: &str) -> SocketAddr {
    let hosts = server.strip_prefix("zookeeper://").unwrap();
    hosts.split(',').next().unwrap().parse().unwrap()
}

pub(crate) async fn ask(addr: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(command.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// With a limit to calls that a machine under load keeps.
pub(crate) async fn driver(url: &str) -> ZooKeeperDriver {
    impatient_driver(&with(url, "call_limit=10s")).await
}

/// With limits to calls that follow from the lease.
pub(crate) async fn impatient_driver(url: &str) -> ZooKeeperDriver {
    ZooKeeperDriver::connect(&url.parse().unwrap()).await.unwrap()
}

/// The URL with one more parameter.
pub(crate) fn with(url: &str, parameter: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{parameter}")
}

pub(crate) fn claim() -> Claim {
    claim_for(LONG)
}

pub(crate) fn claim_for(ttl: Duration) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), NAME).unwrap(), ttl)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn take(driver: &ZooKeeperDriver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

/// As [`take`], where requests may fail for a while.
pub(crate) async fn take_in_the_end(driver: &ZooKeeperDriver, claim: &Claim) -> Grant {
    loop {
        match driver.try_acquire(claim).await {
            Ok(Attempt::Granted(grant)) => return grant,
            Ok(other) => panic!("not granted: {other:?}"),
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

pub(crate) async fn refused(driver: &ZooKeeperDriver, claim: &Claim) {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(_) => (),
        other => panic!("not refused: {other:?}"),
    }
}

/// The kind of the error, and a text with all causes.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, DriverError>) -> (ErrorKind, String) {
    let error = result.unwrap_err();
    let kind = error.kind();
    (kind, causes(&*error.into_source()))
}

pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| format!("{error}; ")).collect()
}
