#![doc = include_str!("../README.md")]

mod connect;
pub mod guide;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod sql;

pub use connect::{BACKENDS, Backend, SESSION_BACKENDS, connect, connect_url};
pub use lockkit_core::*;
