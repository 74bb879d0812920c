//! The libraries: how each is connected, acquires and releases, as its documentation shows.

#[cfg(feature = "etcd")]
mod ash_lock;
#[cfg(feature = "redis")]
mod distkit;
#[cfg(any(feature = "file", feature = "mysql", feature = "postgres", feature = "redis"))]
mod distributed_lock;
mod etcdctl;
#[cfg(feature = "postgres")]
mod pg_advisory;
#[cfg(feature = "rslock")]
mod rslock;
#[cfg(feature = "etcd")]
mod v3lock;
#[cfg(feature = "zookeeper")]
mod zookeeper_client;

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::Result;

/// One library on its servers.
pub struct Peer {
    pub name: String,
    pub lease: Duration,
    pub servers: Vec<String>,
}

/// One client with connections of its own.
pub trait Client: Send + Sync {
    /// Waits for the lock.
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>>;
}

/// Lets go when it is awaited.
pub type Release = BoxFuture<'static, Result<()>>;

impl Peer {
    pub async fn connect(&self) -> Result<Box<dyn Client>> {
        Ok(match self.name.as_str() {
            #[cfg(feature = "rslock")]
            "rslock" => Box::new(rslock::connect(self)?),
            #[cfg(feature = "redis")]
            "distributed-lock-redis" => Box::new(distributed_lock::redis(self).await?),
            #[cfg(feature = "postgres")]
            "distributed-lock-postgres" => Box::new(distributed_lock::postgres(self).await?),
            #[cfg(feature = "mysql")]
            "distributed-lock-mysql" => Box::new(distributed_lock::mysql(self).await?),
            #[cfg(feature = "file")]
            "distributed-lock-file" => Box::new(distributed_lock::file(self)?),
            #[cfg(feature = "redis")]
            "distkit" => Box::new(distkit::connect(self).await?),
            #[cfg(feature = "etcd")]
            "ash-lock" => Box::new(ash_lock::connect(self).await?),
            #[cfg(feature = "postgres")]
            "sqlx-advisory" => Box::new(pg_advisory::connect(self).await?),
            #[cfg(feature = "etcd")]
            "v3lock" => Box::new(v3lock::connect(self).await?),
            "etcdctl" => Box::new(etcdctl::connect(self).await?),
            #[cfg(feature = "zookeeper")]
            "zookeeper-client" => Box::new(zookeeper_client::connect(self).await?),
            other => return Err(format!("no library `{other}` here").into()),
        })
    }

    /// As the manifest pins it; of a program, as it says itself.
    pub fn version(&self) -> &'static str {
        match self.name.as_str() {
            "rslock" => "0.10.0",
            "distkit" => "0.7.1",
            "ash-lock" => "0.1.0",
            "sqlx-advisory" => "0.9.0",
            "v3lock" => "0.21.1",
            "zookeeper-client" => "0.11.2",
            name if name.starts_with("distributed-lock-") => "0.2.0",
            _ => "",
        }
    }

    #[cfg(any(feature = "file", feature = "mysql", feature = "postgres", feature = "redis"))]
    fn first(&self) -> Result<&str> {
        Ok(self.servers.first().ok_or("no server")?)
    }

    /// `host:port` of each server.
    fn hosts(&self) -> Vec<&str> {
        self.servers
            .iter()
            .map(|server| server.split_once("://").map_or(server.as_str(), |(_, host)| host))
            .collect()
    }
}
