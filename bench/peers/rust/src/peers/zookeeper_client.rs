//! The lock of zookeeper-client. Dropping it deletes its node in the background: there is no
//! release that could be awaited.

use ::zookeeper_client::{Acls, Client as ZooKeeper, CreateMode, LockOptions, LockPrefix};
use futures_util::future::BoxFuture;

use super::{Client, Peer, Release};
use crate::Result;

pub struct Session(ZooKeeper);

pub async fn connect(peer: &Peer) -> Result<Session> {
    let connector = ZooKeeper::connector().with_session_timeout(peer.lease);
    Ok(Session(connector.connect(&peer.hosts().join(",")).await?))
}

impl Client for Session {
    fn acquire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let folder = format!("/peers/{name}");
            let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
            let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
            let prefix = LockPrefix::new_curator(&folder, "lock-")?;
            let lock = self.0.lock(prefix, b"", options).await?.into_owned();
            let release: Release = Box::pin(async move {
                drop(lock);
                Ok(())
            });
            Ok(release)
        })
    }
}
