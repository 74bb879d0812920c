//! Clients for a machine under load, which is not to be taken for a server that does not answer.

use std::iter::successors;

use lockkit_core::Error;
use lockkit_redis::RedisDriver;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

/// How often it may be the machine's fault.
const TRIES: usize = 20;

/// A plain client without limits.
pub(crate) async fn client(url: &str) -> RedisResult<MultiplexedConnection> {
    let patient =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

/// A driver, which has limits of its own for connecting.
pub(crate) async fn driver(url: &str) -> Result<RedisDriver, Error> {
    let url = url.parse()?;
    for _ in 1..TRIES {
        match RedisDriver::connect(&url).await {
            Err(error) if is_about_time(&error) => (),
            connected => return connected,
        }
    }
    RedisDriver::connect(&url).await
}

fn is_about_time(error: &Error) -> bool {
    let mut causes = successors(Some(error as &dyn std::error::Error), |it| it.source());
    causes.any(|cause| cause.to_string().contains(" within "))
}
