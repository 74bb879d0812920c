//! The etcd driver of lockkit: locks in an etcd cluster, first come, first served.
//!
//! Whoever wants a lock puts a key of its own into the lock's queue, in the one transaction that
//! also reads the queue; whoever is first in the queue holds the lock. Keys hang on leases from a
//! pool that is kept alive, so that an uncontended acquisition is one request. A waiter watches the
//! key before its own. The fencing token is the revision at which the key was created.
//!
//! Applications use it through the facade crate `lockkit`, with the feature `etcd`. Building it
//! takes `protoc`, the compiler of protocol buffers.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_etcd::EtcdDriver;
//!
//! let url = "etcd://one:2379,two:2379,three:2379?namespace=shop".parse()?;
//! let driver = EtcdDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/etcd.md` says what it guarantees and what it stores.

mod board;
mod claims;
mod config;
mod diagnosis;
mod driver;
mod entry;
mod error;
mod inspect;
mod keepalive;
mod layout;
mod leases;
mod members;
mod queue;
mod reader;
mod tls;
pub mod transaction;
mod versions;
mod watch;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, EtcdDriver};
