//! The Redis driver of lockkit: for one Redis server, or another that speaks its protocol; for the
//! primary that sentinels watch over; or for a cluster.
//!
//! A lock is a hash with an expiry. It is taken, renewed and released by one script each, with one
//! request per operation. Waiters hear of a release by publish and subscribe; acquisitions that ask
//! for it are served first come, first served. Hundreds of locks share two connections.
//!
//! Applications use it through the facade crate `lockkit`, with the feature `redis`.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_redis::RedisDriver;
//!
//! let url = "redis://localhost?namespace=shop".parse()?;
//! let driver = RedisDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/redis.md` says what it guarantees and what it stores.

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
