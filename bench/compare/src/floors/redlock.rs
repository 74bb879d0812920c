use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockkit_bench::Result;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::redis::{Keys, Scripts, claimant};
use crate::agent::{Client, Library};

/// Several servers, a majority of which is enough.
pub(super) struct Floor {
    urls: Vec<String>,
}

/// A connection to each.
pub(super) struct Majority {
    connections: Vec<MultiplexedConnection>,
    take: String,
    release: String,
}

impl Floor {
    pub(super) fn at(urls: &[String]) -> Result<Self> {
        Ok(Self { urls: urls.into() })
    }
}

impl Library for Floor {
    type Client = Majority;

    async fn connect(&self) -> Result<Majority> {
        let scripts = Scripts::new();
        let mut connections = Vec::new();
        for url in &self.urls {
            connections.push(scripts.loaded_to(url).await?);
        }
        let [take, release] = [&scripts.take, &scripts.release].map(|one| one.get_hash().into());
        Ok(Majority { connections, take, release })
    }
}

impl Client for Majority {
    type Lock = Keys;
    type Hold = String;

    fn lock(&self, name: &str) -> Result<Keys> {
        Ok(Keys::of(name))
    }

    async fn acquire(&self, keys: &Keys) -> Result<String> {
        let claimant = claimant();
        self.ask_all(call(&self.take, keys, &claimant).arg("30000").arg("")).await?;
        Ok(claimant)
    }

    async fn release(&self, keys: &Keys, claimant: String) -> Result<()> {
        self.ask_all(&call(&self.release, keys, &claimant)).await
    }

    async fn hand_overs(&self, _: &Self, _: &str, _: &[Duration]) -> Result<Option<Vec<Duration>>> {
        super::nothing_is_pushed()
    }
}

fn call(script: &str, keys: &Keys, claimant: &str) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(script).arg(keys.all.len()).arg(&keys.all).arg(claimant);
    call
}

impl Majority {
    /// Returns when a majority has answered; the others are heard in the background.
    async fn ask_all(&self, call: &Cmd) -> Result<()> {
        let mut asked: FuturesUnordered<_> = self
            .connections
            .iter()
            .map(|connection| {
                let (mut connection, call) = (connection.clone(), call.clone());
                async move { call.query_async::<Value>(&mut connection).await }
            })
            .collect();
        for _ in 0..=self.connections.len() / 2 {
            asked.next().await.ok_or("there is no server")??;
        }
        tokio::spawn(async move { while asked.next().await.is_some() {} });
        Ok(())
    }
}
