//! What only Redis can do, and its driver.

pub use lockkit_redis::{RedisDriver, TooFewReplicas, gate};
