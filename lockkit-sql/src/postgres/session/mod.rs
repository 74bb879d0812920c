//! Locks that a session with the PostgreSQL server holds: its advisory locks.
//!
//! A driver has one session for all its locks, over a connection of its own. The server ends the
//! session once it has been idle for the TTL; a heartbeat keeps it from that. When the session
//! ends, for whatever reason, all its locks are lost. A claim that waits does so on one of a few
//! more sessions, in the server's own queue, and then holds the lock by that session.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_sql::postgres::session::PostgresSessionDriver;
//!
//! let url = "postgres://user:password@localhost/shop?hold=session&ttl=10s".parse()?;
//! let driver = PostgresSessionDriver::connect(&url).await?;
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

pub use driver::{CAPABILITIES, PostgresSessionDriver};

pub use super::config::SESSION_PARAMETERS as PARAMETERS;
