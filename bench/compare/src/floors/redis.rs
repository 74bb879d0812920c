use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lockkit_bench::Result;
use lockkit_redis::scripts;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo as _, Script, Value};

use super::NAMESPACE;
use crate::agent::{self, Library, let_go_after};

/// One server.
pub(super) struct Floor {
    url: String,
}

/// One connection.
pub(super) struct Raw {
    url: String,
    connection: MultiplexedConnection,
    scripts: Scripts,
}

/// What the driver runs at the server.
pub(super) struct Scripts {
    pub(super) take: Script,
    pub(super) release: Script,
}

/// The keys of a lock, as `docs/redis.md` has them.
pub(super) struct Keys {
    pub(super) all: [String; 5],
}

impl Floor {
    pub(super) fn at(url: String) -> Result<Self> {
        Ok(Self { url })
    }
}

impl Library for Floor {
    type Client = Raw;

    async fn connect(&self) -> Result<Raw> {
        let scripts = Scripts::new();
        let connection = scripts.loaded_to(&self.url).await?;
        Ok(Raw { url: self.url.clone(), connection, scripts })
    }
}

impl agent::Client for Raw {
    type Lock = Keys;
    type Hold = String;

    fn lock(&self, name: &str) -> Result<Keys> {
        Ok(Keys::of(name))
    }

    async fn acquire(&self, keys: &Keys) -> Result<String> {
        self.take(keys, "no order").await
    }

    async fn release(&self, keys: &Keys, claimant: String) -> Result<()> {
        let mut call = self.scripts.release.prepare_invoke();
        keys.all.iter().for_each(|key| _ = call.key(key));
        call.arg(claimant);
        let _: Value = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(())
    }

    /// A release, and the news of it on another connection.
    async fn hand_overs(
        &self,
        to: &Self,
        name: &str,
        waits: &[Duration],
    ) -> Result<Option<Vec<Duration>>> {
        let keys = Keys::of(name);
        let mut news = Client::open(to.url.as_str())?.get_async_pubsub().await?;
        news.subscribe([&tag(), ":inbox:", INBOX].concat()).await?;
        let mut times = Vec::with_capacity(waits.len());
        for delay in waits {
            let hold = self.acquire(&keys).await?;
            let next = self.take(&keys, "order").await?;
            let waiting = tokio::spawn(async move {
                let message = news.on_message().next().await;
                (message, Instant::now(), news)
            });
            let start = let_go_after(*delay, || self.release(&keys, hold)).await?;
            let (message, heard, returned) = waiting.await?;
            message.ok_or("the subscription ended")?;
            news = returned;
            self.release(&keys, next).await?;
            times.push(heard.saturating_duration_since(start));
        }
        Ok(Some(times))
    }
}

impl Raw {
    /// Asks, and leaves a place if it is refused.
    async fn take(&self, keys: &Keys, place: &str) -> Result<String> {
        let claimant = claimant();
        let mut call = self.scripts.take.prepare_invoke();
        keys.all.iter().for_each(|key| _ = call.key(key));
        call.arg(&claimant).arg("30000").arg(place);
        let _: Value = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(claimant)
    }
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self { take: Script::new(scripts::take()), release: Script::new(scripts::release()) }
    }

    /// A connection to a server that knows them.
    pub(super) async fn loaded_to(&self, url: &str) -> Result<MultiplexedConnection> {
        let settings = TcpSettings::default().set_nodelay(true);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(settings))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        for script in [&self.take, &self.release] {
            script.load_async(&mut connection).await?;
        }
        Ok(connection)
    }
}

impl Keys {
    pub(super) fn of(name: &str) -> Self {
        let tag = tag();
        let key = |kind| format!("{tag}:{kind}:{name}");
        let [lock, queue, unordered, deadlines] =
            ["lock", "queue", "unordered", "deadlines"].map(key);
        Self { all: [lock, queue, unordered, deadlines, format!("{tag}:bucket")] }
    }
}

/// What all keys begin with. Most buckets have three digits.
fn tag() -> String {
    format!("{{{NAMESPACE}:512}}")
}

/// Where a claimant is told what happens to it.
const INBOX: &str = "0123456789abcdef";

/// As the scripts have it.
pub(super) fn claimant() -> String {
    let (owner, label) = super::owner();
    format!("{owner} {INBOX} {label}")
}
