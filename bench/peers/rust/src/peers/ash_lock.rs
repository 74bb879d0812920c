//! ash-lock on etcd, which polls.

use std::sync::Arc;

use ::ash_lock::{EtcdBackend, LockClient, LockConfig};
use futures_util::future::BoxFuture;

use super::{Client, Peer, Release};
use crate::Result;

pub struct AshLock(LockClient);

pub async fn connect(peer: &Peer) -> Result<AshLock> {
    let backend = Arc::new(EtcdBackend::connect(peer.hosts(), None).await?);
    let config = LockConfig {
        default_ttl: peer.lease,
        watchdog_interval: peer.lease / 3,
        ..LockConfig::default()
    };
    Ok(AshLock(LockClient::connect_with(config, backend).await?))
}

impl Client for AshLock {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let guard = self.0.lock(name).await.acquire().await?;
            let release: Release = Box::pin(async move { Ok(guard.unlock().await?) });
            Ok(release)
        })
    }
}
