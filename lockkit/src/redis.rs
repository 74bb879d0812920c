//! What only Redis can do.

pub use lockkit_redis::gate;
