//! SQL drivers of [lockkit](lockkit_core), the distributed-lock framework.
//!
//! Each database is a feature; none is on by default.
//!
//! - `sqlite`: locks between the processes of one host, in a database file.
//! - `postgres`: locks between hosts, in tables of a PostgreSQL database.

#[cfg(feature = "postgres")]
mod backoff;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
