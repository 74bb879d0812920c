//! SQL drivers for [lockkit](lockkit_core), the distributed-lock framework.
//!
//! Each database has its own feature; none is enabled by default.
//!
//! - `sqlite`: locks between the processes of one host, in a database file.
//! - `postgres`: locks between hosts, in tables of a PostgreSQL database or kept by a session with
//!   it.
//! - `mysql`: the same for MySQL and MariaDB.
//!
//! Each of them also provides locks inside the user's own [transactions](transaction).

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod housekeeping;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod late;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod leases;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod micros;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod neighbours;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod query;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod renewals;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod seats;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod session;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sights;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod stays;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod subscription;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tls;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod together;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod transaction;
