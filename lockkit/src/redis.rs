//! What only Redis can do.

pub use lockkit_redis::{TooFewReplicas, gate};
