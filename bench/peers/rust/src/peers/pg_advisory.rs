//! sqlx's advisory lock of PostgreSQL, on a connection from its pool.

use futures_util::future::BoxFuture;
use sqlx::PgPool;
use sqlx::postgres::PgAdvisoryLock;

use super::{Client, Peer, Release};
use crate::Result;

pub struct Pool(PgPool);

pub async fn connect(peer: &Peer) -> Result<Pool> {
    Ok(Pool(PgPool::connect(peer.first()?).await?))
}

impl Client for Pool {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let connection = self.0.acquire().await?;
            let guard = PgAdvisoryLock::new(name).acquire(connection).await?;
            let release: Release = Box::pin(async move {
                guard.release_now().await?;
                Ok(())
            });
            Ok(release)
        })
    }
}
