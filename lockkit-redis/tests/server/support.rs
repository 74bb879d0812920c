use std::path::PathBuf;
use std::time::Duration;

use lockkit_core::driver::{Attempt, Change, Claim, Driver, DriverError, ErrorKind, Taken};
use lockkit_core::{FencingToken, LockName, Namespace};
use lockkit_redis::RedisDriver;
use lockkit_testkit::Server;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, cmd};

use crate::patient;

/// The bucket of this name is 362: all its keys begin with `{lockkit:362}`.
pub(crate) const NAME: &str = "orders/{42} ü";

/// With a limit to calls that a machine under load keeps, also for short leases.
pub(crate) async fn driver(url: &str) -> RedisDriver {
    let and = if url.contains('?') { '&' } else { '?' };
    impatient_driver(&format!("{url}{and}call_limit=10s")).await
}

/// Where a server is to be found beside its port.
pub(crate) fn socket(server: &Server) -> PathBuf {
    server.data().join("redis.sock")
}

/// With limits to calls that follow from the lease.
pub(crate) async fn impatient_driver(url: &str) -> RedisDriver {
    patient::driver(url).await.unwrap()
}

pub(crate) fn claim(ttl: Duration) -> Claim {
    Claim::new(LockName::new(&Namespace::default(), NAME).unwrap(), ttl)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) async fn take(driver: &RedisDriver, claim: &Claim) -> FencingToken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn refused(driver: &RedisDriver, claim: &Claim) -> Taken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(taken) => taken,
        other => panic!("not refused: {other:?}"),
    }
}

/// Asks until the claim's subscription stands. For the first who listens to the lock: who comes
/// later is not told to ask again.
pub(crate) async fn listen(driver: &RedisDriver, claim: &Claim) {
    refused(driver, claim).await;
    assert_eq!(driver.changed(claim).await, Change::AskAgain);
    refused(driver, claim).await;
}

/// The token under which the claim is handed the lock.
pub(crate) async fn granted(driver: &RedisDriver, claim: &Claim) -> FencingToken {
    match driver.changed(claim).await {
        Change::Granted(grant) => grant.fencing_token().unwrap(),
        other => panic!("not handed the lock: {other:?}"),
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

/// A plain client, to look and to tamper.
pub(crate) struct Raw(MultiplexedConnection);

impl Raw {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(patient::client(url).await.unwrap())
    }

    pub(crate) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query_async(&mut self.0).await.unwrap()
    }

    pub(crate) async fn pipe(&mut self, commands: &redis::Pipeline) {
        commands.exec_async(&mut self.0).await.unwrap();
    }

    /// A field of `INFO`.
    pub(crate) async fn info(&mut self, field: &str) -> String {
        self.ask::<redis::InfoDict>(&["INFO"]).await.get(field).unwrap()
    }

    /// Tells something to all who listen to anything.
    pub(crate) async fn tell_all(&mut self, news: &str) {
        for channel in self.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await {
            self.ask::<()>(&["PUBLISH", &channel, news]).await;
        }
    }

    /// The keys that there are, except the counters.
    pub(crate) async fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.retain(|key| !key.ends_with(":bucket"));
        keys.sort();
        keys
    }

    /// Has the server fail to save: there is a folder where the file should be.
    pub(crate) async fn fail_to_save(&mut self, server: &Server) {
        std::fs::create_dir(server.data().join("dump.rdb")).unwrap();
        self.ask::<()>(&["CONFIG", "SET", "save", "3600 1"]).await;
        self.ask::<()>(&["BGSAVE"]).await;
        while self.info("rdb_last_bgsave_status").await == "ok" {}
    }

    /// Has it save after all.
    pub(crate) async fn save(&mut self, server: &Server) {
        std::fs::remove_dir(server.data().join("dump.rdb")).unwrap();
        self.ask::<()>(&["BGSAVE"]).await;
        while self.info("rdb_last_bgsave_status").await != "ok" {}
    }

    /// Whether a script takes long.
    pub(crate) async fn is_busy(&mut self) -> bool {
        let answer = cmd("PING").exec_async(&mut self.0).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    }

    /// Ends the lease of whoever has the lock, as time would.
    pub(crate) async fn expire_lock(&mut self) {
        let lock = format!("{{lockkit:362}}:lock:{NAME}");
        self.ask::<()>(&["PEXPIRE", &lock, "1"]).await;
        while self.ask::<u64>(&["EXISTS", &lock]).await > 0 {
            tokio::time::sleep(millis(1)).await;
        }
    }

    /// Waits until the keys are gone that end by themselves.
    pub(crate) async fn wait_until_empty(&mut self) {
        while !self.keys().await.is_empty() {
            tokio::time::sleep(millis(10)).await;
        }
    }
}
