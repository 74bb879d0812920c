use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use lockkit_core::driver::{Attempt, Change, Claim, Driver, DriverError, ErrorKind, OwnerId};
use lockkit_core::{FencingToken, LockName, Locker, Namespace};
use lockkit_etcd::EtcdDriver;

/// A lease that does not run out while a test is under way, and is not renewed either.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A plain client of one server, to look and to tamper.
pub(crate) struct Raw {
    pub(crate) client: Client,
    port: u16,
}

impl Raw {
    pub(crate) async fn on(port: u16) -> Self {
        let client = Client::connect([format!("127.0.0.1:{port}")], None).await.unwrap();
        Self { client, port }
    }

    /// The keys of the driver, the first created first, and the leases that they hang on.
    pub(crate) async fn keys(&mut self) -> Vec<(String, i64)> {
        self.keys_under("lockkit/").await
    }

    /// The keys that begin so, the first created first, and the leases that they hang on.
    pub(crate) async fn keys_under(&mut self, prefix: &str) -> Vec<(String, i64)> {
        let options = GetOptions::new()
            .with_prefix()
            .with_sort(etcd_client::SortTarget::Create, etcd_client::SortOrder::Ascend);
        let answer = self.client.get(prefix, Some(options)).await.unwrap();
        answer.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.lease())).collect()
    }

    /// The key of an owner, as its value tells.
    pub(crate) async fn key_of(&mut self, owner: OwnerId) -> String {
        let options = GetOptions::new().with_prefix();
        let answer = self.client.get("lockkit/", Some(options)).await.unwrap();
        let owner = owner.to_string();
        let mut kvs = answer.kvs().iter();
        let kv = kvs.find(|kv| kv.value().starts_with(owner.as_bytes())).unwrap();
        kv.key_str().unwrap().to_owned()
    }

    pub(crate) async fn leases(&mut self) -> Vec<i64> {
        self.client.leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect()
    }

    pub(crate) async fn revision(&mut self) -> i64 {
        self.client.get("x", None).await.unwrap().header().unwrap().revision()
    }

    /// What the server has counted under that name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts(|line| line.starts_with(name))
    }

    /// How many requests of that kind have come, and how many of them have ended, however that was.
    pub(crate) fn begun_and_ended(&self, method: &str) -> (u64, u64) {
        let method = format!("grpc_method=\"{method}\"");
        let [begun, ended] = ["started", "handled"].map(|what| {
            let name = format!("grpc_server_{what}_total{{");
            self.counts(|line| line.starts_with(&name) && line.contains(&method))
        });
        (begun, ended)
    }

    fn counts(&self, is_wanted: impl Fn(&str) -> bool) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let counts = text.lines().filter(|line| is_wanted(line)).map(|line| {
            let (_, count) = line.rsplit_once(' ').unwrap();
            count.parse::<f64>().unwrap() as u64
        });
        counts.sum()
    }

    /// How many requests of that kind were answered well.
    pub(crate) fn requests(&self, service: &str, method: &str) -> u64 {
        self.count(&format!(
            "grpc_server_handled_total{{grpc_code=\"OK\",grpc_method=\"{method}\",\
             grpc_service=\"etcdserverpb.{service}\",grpc_type=\"unary\"}}"
        ))
    }

    pub(crate) fn watchers(&self) -> u64 {
        self.count("etcd_debugging_mvcc_watcher_total")
    }

    /// Waits until nothing is left of any driver.
    pub(crate) async fn is_clean(&mut self) {
        loop {
            let (keys, leases) = (self.keys().await, self.leases().await);
            if keys.is_empty() && leases.is_empty() && self.watchers() == 0 {
                return;
            }
            tokio::time::sleep(millis(20)).await;
        }
    }
}

/// With a limit to calls that a machine under load keeps, also for short leases.
pub(crate) async fn driver(url: &str) -> EtcdDriver {
    impatient_driver(&format!("{url}?call_limit=10s")).await
}

/// With limits to calls that follow from the lease.
pub(crate) async fn impatient_driver(url: &str) -> EtcdDriver {
    EtcdDriver::connect(&url.parse().unwrap()).await.unwrap()
}

/// An application with leases of that length.
pub(crate) async fn locker(url: &str, ttl: Duration) -> Locker {
    let lease = lockkit_core::Lease::new(ttl);
    Locker::builder(impatient_driver(url).await).lease(lease).build().unwrap()
}

pub(crate) fn claim(ttl: Duration) -> Claim {
    named("orders/42", ttl)
}

pub(crate) fn named(name: &str, ttl: Duration) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), name).unwrap(), ttl)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn take(driver: &EtcdDriver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn refused(driver: &EtcdDriver, claim: &Claim) {
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

/// Goes on as the engine does, but for its polls, which would take 200 s here.
pub(crate) async fn granted(driver: &EtcdDriver, waiting: &Claim) {
    loop {
        match driver.changed(waiting).await {
            Change::Granted(_) => return,
            Change::AskAgain => match driver.try_acquire(waiting).await {
                Ok(Attempt::Granted(_)) => return,
                Ok(_) => (),
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            },
            other => panic!("{other:?}"),
        }
    }
}
