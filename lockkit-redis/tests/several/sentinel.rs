//! Against a primary that sentinels watch over.

use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_redis::CAPABILITIES;
use lockkit_testkit::{RedisSentinels, Unavailable};

use crate::patient;

pub(crate) fn suite() -> Suite {
    // No failover comes about because a busy machine keeps a server from answering.
    static SET: LazyLock<Result<RedisSentinels, Unavailable>> =
        LazyLock::new(|| RedisSentinels::start(Duration::from_secs(60)));

    fn set() -> Result<&'static RedisSentinels, BoxError> {
        SET.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    async fn ask(words: &[&str]) -> Result<redis::Value, BoxError> {
        let set = set()?;
        let mut connection = patient::client(&set.servers()[set.primary()].url()).await?;
        Ok(redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await?)
    }

    Suite::new("redis", CAPABILITIES)
        .called("redis-sentinel")
        .skip_unless(|| set().map(|_| ()))
        .connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=5s", set()?.url());
            Ok(patient::driver(&url).await?)
        })
        .revoke(|name| async move {
            let suffix = format!(":lock:{name}");
            let keys: Vec<String> = redis::from_redis_value(ask(&["KEYS", "*"]).await?)?;
            for key in keys.iter().filter(|key| key.ends_with(&suffix)) {
                ask(&["DEL", key]).await?;
            }
            Ok(())
        })
        .sever(|| async {
            ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await?;
            ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await?;
            Ok(())
        })
        .ttl(Duration::from_millis(1000))
}
