use lockkit::redis::gate::redis::{RedisError, Script, aio::MultiplexedConnection};

const SELL: &str = "
    local pieces = tonumber(redis.call('GET', KEYS[1]) or 0)
    if pieces < 1 then return 0 end
    redis.call('DECR', KEYS[1])
    return 1";

async fn sell(redis: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    Script::new(SELL).key("{shoes}:pieces").invoke_async(redis).await
}
