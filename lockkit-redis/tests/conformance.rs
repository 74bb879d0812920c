//! The conformance suite, against one Redis.

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_redis::{CAPABILITIES, RedisDriver};
use lockkit_testkit::{REDIS, Server, Unavailable};

fn main() -> ExitCode {
    static SERVER: LazyLock<Result<Server, Unavailable>> = LazyLock::new(|| REDIS.start());

    fn server() -> Result<&'static Server, lockkit_core::BoxError> {
        SERVER.as_ref().map_err(|unavailable| unavailable.clone().into())
    }

    async fn ask(words: &[&str]) -> Result<redis::Value, lockkit_core::BoxError> {
        let client = redis::Client::open(server()?.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await?)
    }

    Suite::new("redis", CAPABILITIES)
        .skip_unless(|| server().map(|_| ()))
        .connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=5s", server()?.url());
            Ok(RedisDriver::connect(&url.parse()?).await?)
        })
        .revoke(|name| async move {
            let suffix = format!(":lock:{name}");
            let keys = ask(&["KEYS", "*"]).await?;
            let keys: Vec<String> = redis::from_redis_value(keys)?;
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
        .restart(|| async { Ok(server()?.restart()?) })
        .ttl(Duration::from_millis(1000))
        .main()
}
