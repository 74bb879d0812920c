//! rslock: Redlock on one or more Redis servers. Nothing renews its locks.

use std::sync::Arc;
use std::time::Duration;

use ::rslock::LockManager;
use futures_util::future::BoxFuture;

use super::{Client, Peer, Release};
use crate::Result;

pub struct Rslock {
    manager: Arc<LockManager>,
    lease: Duration,
}

pub fn connect(peer: &Peer) -> Result<Rslock> {
    let manager = Arc::new(LockManager::new(peer.servers.clone()));
    Ok(Rslock { manager, lease: peer.lease })
}

impl Client for Rslock {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let guard = self.manager.acquire(name, self.lease).await?;
            let release: Release = Box::pin(async move {
                guard.release().await;
                Ok(())
            });
            Ok(release)
        })
    }
}
