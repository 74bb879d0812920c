//! distributed-lock, on four backends.

use std::time::{Duration, Instant};

use distributed_lock_core::{DistributedLock, LockHandle, LockProvider};
#[cfg(feature = "file")]
use distributed_lock_file::FileLockProvider;
#[cfg(feature = "mysql")]
use distributed_lock_mysql::MySqlLockProvider;
#[cfg(feature = "postgres")]
use distributed_lock_postgres::PostgresLockProvider;
#[cfg(feature = "redis")]
use distributed_lock_redis::RedisLockProvider;
use futures_util::future::BoxFuture;

use super::{Client, Peer, Release};
use crate::Result;

/// Without it some of them only try.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Provided<P>(P);

#[cfg(feature = "redis")]
pub async fn redis(peer: &Peer) -> Result<Provided<RedisLockProvider>> {
    let provider = RedisLockProvider::builder()
        .urls(&peer.servers)
        .expiry(peer.lease)
        .extension_cadence(peer.lease / 3)
        .min_validity(peer.lease * 9 / 10);
    Ok(Provided(provider.build().await?))
}

#[cfg(feature = "postgres")]
pub async fn postgres(peer: &Peer) -> Result<Provided<PostgresLockProvider>> {
    let provider = PostgresLockProvider::builder().connection_string(peer.first()?);
    Ok(Provided(provider.build().await?))
}

#[cfg(feature = "mysql")]
pub async fn mysql(peer: &Peer) -> Result<Provided<MySqlLockProvider>> {
    let provider = MySqlLockProvider::builder().connection_string(peer.first()?);
    Ok(Provided(provider.build().await?))
}

#[cfg(feature = "file")]
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
            let begun = Instant::now();
            let acquired = self.0.create_lock(name).acquire(Some(PATIENCE)).await;
            let handle = match (acquired, begun.elapsed()) {
                (Ok(handle), _) => handle,
                // The one on Redis asks once, and says then that all of its time was over.
                (Err(error), waited) if waited < PATIENCE => {
                    return Err(format!("it does not wait: after {waited:.1?}, {error}").into());
                }
                (Err(error), _) => return Err(error.into()),
            };
            let release: Release = Box::pin(async move { Ok(handle.release().await?) });
            Ok(release)
        })
    }
}
