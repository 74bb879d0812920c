//! Redis driver of lockkit: one Redis server or one that speaks its protocol, the primary that sentinels
//! watch over, or a cluster.
//!
//! A lock is a hash with an expiry, taken, renewed and released by a script each, one request an
//! operation. Waiters hear of a release by publish and subscribe; acquisitions that ask for it are
//! served first come, first served. Hundreds of locks share two connections.
//!
//! Applications reach it through the facade crate `lockkit` and its feature `redis`.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! let driver = lockkit_redis::RedisDriver::connect(&"redis://localhost".parse()?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! What it guarantees, and what it stores, is told in `docs/redis.md`.

mod backoff;
mod cluster;
mod config;
mod connection;
mod diagnosis;
mod dialect;
mod driver;
mod endpoint;
mod error;
pub mod gate;
mod greeting;
mod inspect;
mod layout;
mod node;
mod plain;
mod replicas;
mod request;
mod script;
pub mod scripts;
mod sentinel;
mod servers;
mod spares;
mod subscription;
mod target;
mod tls;

pub use config::{NODE_PARAMETERS, PARAMETERS};
pub use dialect::{CAPABILITIES, PLAIN_CAPABILITIES};
pub use driver::RedisDriver;
pub use replicas::TooFewReplicas;
