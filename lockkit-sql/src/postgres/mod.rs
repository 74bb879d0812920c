//! Locks between hosts, in a PostgreSQL database.
//!
//! A lock is a lease, kept as a row. Taking, renewing and releasing take one statement each: a call
//! of a function that the driver has put into the database, so that each decides with the row
//! locked and in one round trip. Leases count on the server's clock. Waiters listen for news
//! (`LISTEN`) on one connection for all locks; acquisitions that ask for it are served first come,
//! first served.
//!
//! ```no_run
//! # async fn example() -> lockkit_core::Result<()> {
//! use std::sync::Arc;
//!
//! use lockkit_core::Locker;
//! use lockkit_sql::postgres::PostgresDriver;
//!
//! let url = "postgres://user:password@localhost/app?namespace=shop".parse()?;
//! let driver = PostgresDriver::connect(&url).await?;
//! let locker = Locker::from_url(Arc::new(driver), &url)?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/postgres.md` says what the driver guarantees and what it stores.

mod channel;
mod claims;
mod config;
mod connections;
mod diagnosis;
mod driver;
mod endpoint;
mod error;
mod inspect;
mod layout;
pub mod session;
mod sweep;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, PostgresDriver};
