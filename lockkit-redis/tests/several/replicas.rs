//! With replicas that are waited for.

use std::sync::LazyLock;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_core::BoxError;
use lockkit_redis::CAPABILITIES;
use lockkit_testkit::{REDIS, Server, Unavailable};

use crate::patient;

/// They end the other way round than they were started.
struct Place {
    _replicas: [Server; 2],
    primary: Server,
}

pub(crate) fn suite() -> Suite {
    static PLACE: LazyLock<Result<Place, Unavailable>> = LazyLock::new(|| {
        let primary = REDIS.start_with(&["--repl-diskless-sync-delay", "0"])?;
        let port = primary.port().to_string();
        let replica = || REDIS.start_with(&["--replicaof", "127.0.0.1", &port]);
        Ok(Place { _replicas: [replica()?, replica()?], primary })
    });

    fn primary() -> Result<&'static Server, BoxError> {
        Ok(&PLACE.as_ref().map_err(Clone::clone)?.primary)
    }

    async fn ask(words: &[&str]) -> Result<redis::Value, BoxError> {
        let mut connection = patient::client(&primary()?.url()).await?;
        Ok(redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await?)
    }

    Suite::new("redis", CAPABILITIES)
        .called("redis-replicas")
        .skip_unless(|| primary().map(|_| ()))
        .connect(|| async {
            // The default limits for the shortest leases are too short for a machine under load.
            let url = format!("{}?call_limit=5s&replicas=1&replica_timeout=5s", primary()?.url());
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
