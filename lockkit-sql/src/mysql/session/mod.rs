//! Locks that a session with a MySQL or MariaDB server holds: those of `GET_LOCK`.
//!
//! A driver has one session for all its locks, over a connection of its own. The server ends the
//! session once it has been idle for the TTL, in whole seconds; a heartbeat keeps it from that.
//! When the session ends, for whatever reason, all its locks are lost. A claim that waits does so
//! on one of a few more sessions, in the server's own queue, and then holds the lock by that
//! session.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_sql::mysql::session::MysqlSessionDriver;
//!
//! let url = "mysql://user:password@localhost/shop?hold=session&ttl=10s".parse()?;
//! let driver = MysqlSessionDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/sql-sessions.md` says what the driver guarantees and what it stores.

mod diagnosis;
mod driver;
mod inspect;
mod server;

pub use driver::{CAPABILITIES, MysqlSessionDriver};

pub use super::config::SESSION_PARAMETERS as PARAMETERS;
