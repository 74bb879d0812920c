//! The lock service of etcd itself, through etcd-client, under one lease that is kept alive.

use std::time::Duration;

use etcd_client::{Client as Etcd, LockOptions};
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::{Client, Peer, Release};
use crate::Result;

pub struct V3Lock {
    client: Etcd,
    lease: i64,
}

pub async fn connect(peer: &Peer) -> Result<V3Lock> {
    let mut client = Etcd::connect(peer.hosts(), None).await?;
    let seconds = i64::try_from(peer.lease.as_secs())?.max(1);
    let lease = client.lease_grant(seconds, None).await?.id();
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    let pause = Duration::from_secs_f64(peer.lease.as_secs_f64() / 3.0);
    tokio::spawn(async move {
        while keeper.keep_alive().await.is_ok() && matches!(answers.message().await, Ok(Some(_))) {
            sleep(pause).await;
        }
    });
    Ok(V3Lock { client, lease })
}

impl Client for V3Lock {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let mut client = self.client.clone();
            let options = LockOptions::new().with_lease(self.lease);
            let key = client.lock(name, Some(options)).await?.key().to_vec();
            let release: Release = Box::pin(async move {
                client.unlock(key).await?;
                Ok(())
            });
            Ok(release)
        })
    }
}
