//! The ZooKeeper driver of lockkit: locks that end with a session, and queues in order of arrival.
//!
//! A claim is an ephemeral sequential node. The first of a lock's nodes holds the lock, and each
//! waiter watches the node before its own. Taking a free lock is one round trip. All locks of a
//! locker share one session, which one heartbeat keeps alive.
//!
//! Applications reach it through the facade crate `lockkit` and its feature `zookeeper`.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_zk::ZooKeeperDriver;
//!
//! let url = "zookeeper://localhost?namespace=shop".parse()?;
//! let driver = ZooKeeperDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/zookeeper.md` says what it guarantees and what it stores.

mod claims;
mod config;
mod diagnosis;
mod driver;
mod endpoint;
mod error;
mod inspect;
mod layout;
mod probe;
mod proof;
mod queue;
mod rank;
mod room;
mod session;
mod sessions;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
pub mod transaction;
mod watch;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, ZooKeeperDriver};
