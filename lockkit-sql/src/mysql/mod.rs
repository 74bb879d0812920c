//! Locks between hosts, in a MySQL or MariaDB database.
//!
//! A lock is a lease, kept as a row. Taking, renewing and releasing take one statement each, which
//! decides with the row locked and tells what it did in its reply: one round trip. Leases count on
//! the server's clock. A release tells one waiter, by ending the sleep of a session of the waiter's
//! process; acquisitions that ask for it are served first come, first served.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_sql::mysql::MysqlDriver;
//!
//! let url = "mysql://user:password@localhost/app?namespace=shop".parse()?;
//! let driver = MysqlDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/mysql.md` says what the driver guarantees and what it stores.

mod bell;
mod claims;
mod config;
mod connections;
mod diagnosis;
mod driver;
mod endpoint;
mod error;
mod inspect;
mod kill;
mod layout;
mod queue;
pub mod session;
mod sweep;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, MysqlDriver};
