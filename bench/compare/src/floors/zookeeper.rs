use std::time::{Duration, Instant};

use lockkit_bench::Result;
use zookeeper_client::{Acls, Client as Session, CreateMode};

use super::{NAMESPACE, hosts, owner};
use crate::agent::{Client, Library, let_go_after};

/// An ensemble.
pub(super) struct Floor {
    hosts: String,
}

/// One session.
pub(super) struct Raw(Session);

impl Floor {
    pub(super) fn at(urls: &[String]) -> Result<Self> {
        Ok(Self { hosts: hosts(urls)?.join(",") })
    }
}

impl Library for Floor {
    type Client = Raw;

    async fn connect(&self) -> Result<Raw> {
        Ok(Raw(Session::connect(&self.hosts).await?))
    }
}

impl Raw {
    /// Of the kind that stays, so that nobody has to make it anew.
    async fn make(&self, folder: &str) -> Result<()> {
        self.0.mkdir(folder, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(())
    }
}

impl Client for Raw {
    type Lock = String;
    type Hold = String;

    fn lock(&self, name: &str) -> Result<String> {
        Ok(format!("/{NAMESPACE}/{}", name.replace('/', "-")))
    }

    /// Makes a node, and lists all.
    async fn acquire(&self, folder: &String) -> Result<String> {
        let (owner, label) = owner();
        let path = format!("{folder}/{owner}-");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let taking = async || {
            tokio::join!(
                self.0.create(&path, label.as_bytes(), &options),
                self.0.list_children(folder)
            )
        };
        let (mut created, mut listed) = taking().await;
        if matches!(created, Err(zookeeper_client::Error::NoNode)) {
            self.make(folder).await?;
            (created, listed) = taking().await;
        }
        listed?;
        Ok(format!("{path}{}", created?.1))
    }

    async fn release(&self, _: &String, path: String) -> Result<()> {
        Ok(self.0.delete(&path, None).await?)
    }

    /// A delete, and its event in another session.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let folder = self.lock(name)?;
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            let path = self.acquire(&folder).await?;
            let (_, _, watch) = to.0.get_and_watch_data(&path).await?;
            let waiting = tokio::spawn(async move {
                watch.changed().await;
                Instant::now()
            });
            let start = let_go_after(*delay, || self.release(&folder, path)).await?;
            times.push(waiting.await?.saturating_duration_since(start));
        }
        Ok(Some(times))
    }
}
