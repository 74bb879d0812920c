use lockkit::redis::gate::redis::{self, AsyncCommands as _, aio::MultiplexedConnection};
use lockkit::{BoxError, Lock, redis::gate};

async fn sell(lock: &Lock, redis: &mut MultiplexedConnection) -> Result<bool, BoxError> {
    let guard = lock.acquire().await?;
    let token = guard.fencing_token().ok_or("this backend gives no token")?;
    // From here on nothing of an earlier holder gets in, so that what is read stays true.
    gate::pass::<()>(redis, "{shoes}:gate", token, &redis::pipe()).await?;
    let pieces: i64 = redis.get("{shoes}:pieces").await?;
    if pieces > 0 {
        let mut writes = redis::pipe();
        writes.set("{shoes}:pieces", pieces - 1);
        gate::pass::<()>(redis, "{shoes}:gate", token, &writes).await?;
    }
    // The sale stands, whatever becomes of the release.
    drop(guard);
    Ok(pieces > 0)
}
