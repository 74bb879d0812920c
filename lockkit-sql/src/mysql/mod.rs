//! Locks between hosts, in a MySQL or MariaDB database.

#![expect(dead_code, reason = "the driver that uses it is being built")]

mod config;
mod endpoint;
mod error;

pub use config::PARAMETERS;
