//! SQL drivers of [lockkit](lockkit_core), the distributed-lock framework.
//!
//! Each database is a feature; none is on by default.
//!
//! - `sqlite`: locks between the processes of one host, in a database file: [`sqlite`].

#[cfg(feature = "sqlite")]
pub mod sqlite;
