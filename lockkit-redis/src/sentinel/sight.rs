use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::error::Failure;

/// How a sentinel sees the group.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Counts the failovers.
    pub(crate) epoch: u64,
    /// How many other sentinels it knows.
    pub(crate) others: u32,
    /// How many of them must call the primary down.
    pub(crate) quorum: u32,
    pub(crate) replicas: u32,
    /// Whether it takes the primary to be down.
    pub(crate) is_down: bool,
}

impl Sight {
    /// What a sentinel says of the group, if it does within `limit`.
    pub(super) async fn of(
        sentinel: &Endpoint,
        group: &str,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let asking = async {
            let (mut connection, mut running) = sentinel.connect().await?;
            let ask = |what| redis::cmd("SENTINEL").arg(what).arg(group).clone();
            let mut both = redis::Pipeline::with_capacity(2);
            // While a failover is not over yet, only the first of these tells the new address.
            both.add_command(ask("GET-MASTER-ADDR-BY-NAME")).add_command(ask("MASTER"));
            let mut answers = tokio::select! {
                answers = connection.send_packed_commands(&both, 0, 2) => answers?.into_iter(),
                () = &mut running => return Err(Failure::Broken),
            };
            let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
            let address: Option<(String, u16)> = parse(next()?)?;
            let Some((host, port)) = address else {
                return Err(Failure::UnknownGroup(group.into()));
            };
            let sight = Self::of_fields(&parse(next()?)?).ok_or(Failure::Broken)?;
            Ok(Self { host, port, ..sight })
        };
        timeout(limit, asking).await.unwrap_or(Err(Failure::NoAnswer(limit)))
    }

    fn of_fields(fields: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            host: fields.get("ip")?.clone(),
            port: fields.get("port")?.parse().ok()?,
            epoch: fields.get("config-epoch")?.parse().ok()?,
            others: fields.get("num-other-sentinels")?.parse().ok()?,
            quorum: fields.get("quorum")?.parse().ok()?,
            replicas: fields.get("num-slaves")?.parse().ok()?,
            is_down: fields.get("flags")?.contains("_down"),
        })
    }
}

fn parse<T: FromRedisValue>(answer: Value) -> Result<T, Failure> {
    Ok(redis::from_redis_value(answer).map_err(RedisError::from)?)
}
