//! Locks between the processes of one host, in an SQLite database file.
//!
//! A lock is a lease, kept as a row. Each ask is decided inside one immediate transaction, which
//! runs in one go on SQLite's own thread: a runtime that stalls never holds the database. Leases
//! are counted on the host's boot-time clock, which goes on during suspend and is the same for
//! every process; the wall clock plays no part in them.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkit_core::Result<()> {
//! # let folder = tempfile::tempdir().expect("a temporary folder");
//! # let path = folder.path().join("locks.db");
//! use lockkit_sql::sqlite::SqliteDriver;
//!
//! let driver = SqliteDriver::open(&path).await?;
//! # lockkit_core::driver::Driver::close(&driver).await;
//! # Ok(())
//! # }
//! ```

mod claims;
mod config;
mod database;
mod diagnosis;
mod doubt;
mod driver;
mod error;
mod inspect;
mod layout;
mod time;
mod wakeup;

pub use config::PARAMETERS;
pub use driver::{CAPABILITIES, SqliteDriver};
