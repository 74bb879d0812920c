use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockkit_core::Label;
use lockkit_core::driver::OwnerId;
use lockkit_redis::scripts;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo as _, Script, Value};

use crate::Result;

/// What the driver sends to each server, sent by hand, and answered at three.
pub(crate) struct Majority {
    connections: Vec<MultiplexedConnection>,
    take: String,
    release: String,
    keys: [String; 5],
}

impl Majority {
    pub(crate) async fn connect(urls: &[String]) -> Result<Self> {
        let (take, release) = (Script::new(scripts::take()), Script::new(scripts::release()));
        let mut connections = Vec::new();
        for url in urls {
            let settings = TcpSettings::default().set_nodelay(true);
            let info = url.as_str().into_connection_info()?.set_tcp_settings(settings);
            let mut connection = Client::open(info)?.get_multiplexed_async_connection().await?;
            for script in [&take, &release] {
                script.load_async(&mut connection).await?;
            }
            connections.push(connection);
        }
        let key = |kind| format!("{{lockkit:0}}:{kind}:pair/by-hand");
        let [lock, queue, unordered, deadlines] =
            ["lock", "queue", "unordered", "deadlines"].map(key);
        let keys = [lock, queue, unordered, deadlines, "{lockkit:0}:bucket".into()];
        Ok(Self {
            connections,
            take: take.get_hash().into(),
            release: release.get_hash().into(),
            keys,
        })
    }

    pub(crate) async fn pair(&self) -> Result<()> {
        let claimant =
            format!("{} 0123456789abcdef {}", OwnerId::random(), Label::of_this_process());
        self.ask_all(self.call(&self.take, &claimant).arg("30000").arg("")).await?;
        self.ask_all(&self.call(&self.release, &claimant)).await
    }

    fn call(&self, script: &str, claimant: &str) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(script).arg(self.keys.len()).arg(&self.keys).arg(claimant);
        call
    }

    /// Returns when three have answered; the others are heard in the background.
    async fn ask_all(&self, call: &Cmd) -> Result<()> {
        let mut asked: FuturesUnordered<_> = self
            .connections
            .iter()
            .map(|connection| {
                let (mut connection, call) = (connection.clone(), call.clone());
                async move { call.query_async::<Value>(&mut connection).await }
            })
            .collect();
        let (mut answers, mut failure) = (0, None);
        while answers < 3 {
            match asked.next().await {
                Some(Ok(_)) => answers += 1,
                Some(Err(error)) => failure = Some(error),
                None => return Err(failure.map_or("there is no server".into(), Into::into)),
            }
        }
        tokio::spawn(async move { while asked.next().await.is_some() {} });
        Ok(())
    }
}
