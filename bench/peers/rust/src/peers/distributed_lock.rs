//! distributed-lock, on four backends.

use std::time::Duration;

use ::distributed_lock::{
    DistributedLock, FileLockProvider, LockHandle, LockProvider, PostgresLockProvider,
    RedisLockProvider,
};
use distributed_lock_mysql::MySqlLockProvider;
use futures_util::future::BoxFuture;

use super::{Client, Peer, Release};
use crate::Result;

/// Without it some of them only try.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Provided<P>(P);

pub async fn redis(peer: &Peer) -> Result<Provided<RedisLockProvider>> {
    let provider = RedisLockProvider::builder()
        .urls(&peer.servers)
        .expiry(peer.lease)
        .extension_cadence(peer.lease / 3)
        .min_validity(peer.lease * 9 / 10);
    Ok(Provided(provider.build().await?))
}

pub async fn postgres(peer: &Peer) -> Result<Provided<PostgresLockProvider>> {
    let provider = PostgresLockProvider::builder().connection_string(peer.first()?);
    Ok(Provided(provider.build().await?))
}

pub async fn mysql(peer: &Peer) -> Result<Provided<MySqlLockProvider>> {
    let provider = MySqlLockProvider::builder().connection_string(peer.first()?);
    Ok(Provided(provider.build().await?))
}

pub fn file(peer: &Peer) -> Result<Provided<FileLockProvider>> {
    let folder = peer.first()?.trim_start_matches("file:");
    Ok(Provided(FileLockProvider::new(folder)?))
}

impl<P> Client for Provided<P>
where
    P: LockProvider + Send + Sync,
    P::Lock: Send + Sync,
    <P::Lock as DistributedLock>::Handle: Send + 'static,
{
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let handle = self.0.create_lock(name).acquire(Some(PATIENCE)).await?;
            let release: Release = Box::pin(async move { Ok(handle.release().await?) });
            Ok(release)
        })
    }
}
