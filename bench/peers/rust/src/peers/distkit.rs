//! distkit's Mutex on Redis, which renews itself.

use std::time::Duration;

use ::distkit::DistkitRedisKey;
use ::distkit::lock::{LockOptions, Mutex};
use futures_util::future::BoxFuture;
use redis::aio::ConnectionManager;

use super::{Client, Peer, Release};
use crate::Result;

pub struct Distkit {
    connection: ConnectionManager,
    lease: Duration,
}

pub async fn connect(peer: &Peer) -> Result<Distkit> {
    let connection = redis::Client::open(peer.first()?)?.get_connection_manager().await?;
    Ok(Distkit { connection, lease: peer.lease })
}

impl Client for Distkit {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let key = DistkitRedisKey::try_from(name.to_owned())?;
            let options = LockOptions::builder(key, self.connection.clone()).ttl(self.lease);
            let guard = Mutex::new(options.build()).lock().await?;
            let release: Release = Box::pin(async move {
                guard.release().await?;
                Ok(())
            });
            Ok(release)
        })
    }
}
