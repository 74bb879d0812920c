//! Against a cluster of six.

use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_redis::CAPABILITIES;
use lockkit_testkit::{RedisCluster, Unavailable};
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::patient;

pub(crate) fn suite() -> Suite {
    // No failover comes about because a busy machine keeps a server from answering.
    static CLUSTER: LazyLock<Result<RedisCluster, Unavailable>> =
        LazyLock::new(|| RedisCluster::start(Duration::from_secs(60)));

    fn cluster() -> Result<&'static RedisCluster, BoxError> {
        CLUSTER.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    /// Of each member.
    async fn ask(words: &[&str]) -> Result<Vec<(MultiplexedConnection, Value)>, BoxError> {
        let mut answers = Vec::new();
        for member in cluster()?.members() {
            let mut connection = patient::client(&member.url()).await?;
            let answer = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await?;
            answers.push((connection, answer));
        }
        Ok(answers)
    }

    Suite::new("redis", CAPABILITIES)
        .called("redis-cluster")
        .skip_unless(|| cluster().map(|_| ()))
        .connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=5s", cluster()?.url());
            Ok(patient::driver(&url).await?)
        })
        .revoke(|name| async move {
            let suffix = format!(":lock:{name}");
            for (mut connection, keys) in ask(&["KEYS", "*"]).await? {
                let keys: Vec<String> = redis::from_redis_value(keys)?;
                for key in keys.iter().filter(|key| key.ends_with(&suffix)) {
                    // Replicas have it too, and delete nothing themselves.
                    let deleted: redis::RedisResult<()> =
                        redis::cmd("DEL").arg(key).query_async(&mut connection).await;
                    deleted.or_else(|error| match error.redirect_node() {
                        Some(_) => Ok(()),
                        None => Err(error),
                    })?;
                }
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
