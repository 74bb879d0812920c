//! Distributed locks: one API over many backends, with a fencing token on every guard that can have
//! one, holds that tell when they are lost, and futures that can be dropped anywhere.
//!
//! ```
//! use std::time::Duration;
//!
//! # async fn work(_: Option<lockkit::FencingToken>) {}
//! # #[tokio::main]
//! # async fn main() -> lockkit::Result<()> {
//! // Or redis://…, postgres://…, sqlite:…, …
//! let locker = lockkit::connect("memory:shop?ttl=10s").await?;
//! let lock = locker.lock("orders/42")?;
//!
//! let guard = lock.acquire_timeout(Duration::from_secs(3)).await?;
//! tokio::select! {
//!     // Whoever writes passes on the token, by which the other end refuses a stale holder.
//!     () = work(guard.fencing_token()) => (),
//!     () = guard.lost() => eprintln!("somebody else may hold it now"),
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Backends** are features of this crate, and none except the in-memory one is on by default:
//!   [`BACKENDS`] lists them, [`connect`] takes the URL of any, and [`guide::urls`] has the
//!   parameters. The guides say what each promises, and how it does so.
//! - **Locks** are made by a [`Locker`], of which a process has one for each backend. A [`Lock`]
//!   gives out [`LockGuard`]s; [`Lock::run`] cancels the work when the hold is lost.
//!   [`AcquireOptions`] say how long to wait and for how long to hold.
//! - **Kinds** of locks are types: [`FairLock`], [`LeasedLock`], and [`ReentrantLock`] with an
//!   explicit [`Owner`]. Each is a [`DistributedLock`], with [`LockExt`] beside it.
//! - **What a lock cannot do** is in [`guide::safety`], along with what each backend promises and
//!   how to fence.
//! - **A driver of your own** begins with [`driver`]. The crate `lockkit-conformance` tests it.

mod connect;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "file")]
pub mod file;
pub mod guide;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use connect::{BACKENDS, Backend, PLAIN_BACKENDS, SESSION_BACKENDS, connect, connect_url};
pub use lockkit_core::*;

/// Its examples are run along with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
