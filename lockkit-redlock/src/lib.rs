//! The Redlock driver of lockkit: a lock that a majority of independent nodes grants.
//!
//! It is good for locks that must go on working while a node is down, and where two holders at once
//! would cost something but break nothing: it gives **no fencing token**, and its exclusion rests
//! on clocks. If you need more, use one backend that replicates by consensus, such as ZooKeeper or
//! etcd.
//!
//! The algorithm is
//! [Redlock](https://redis.io/docs/latest/develop/use/patterns/distributed-locks/), all of it,
//! including the delayed restart. The nodes are usually Redis servers, but may be any driver whose
//! holds are leases:
//!
//! ```
//! use lockkit_core::{Locker, memory::MemoryDriver};
//! use lockkit_redlock::RedlockDriver;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
//! let mut driver = RedlockDriver::builder();
//! for name in ["a", "b", "c"] {
//!     driver = driver.node(name, MemoryDriver::shared(name));
//! }
//! let locker = Locker::new(driver.connect().await?);
//! let guard = locker.lock("orders/42")?.acquire().await?;
//! assert_eq!(guard.fencing_token(), None);
//! # guard.release().await }
//! ```
//!
//! `docs/redlock.md` says what it guarantees.

mod asking;
mod ballot;
mod builder;
mod clearing;
mod driver;
mod electorate;
mod failure;
mod inspect;
mod keeping;
mod lanes;
mod member;
mod pulse;
mod settings;
mod stragglers;
mod waiting;

pub use builder::RedlockBuilder;
pub use driver::{CAPABILITIES, RedlockDriver};
pub use settings::{Allow, PARAMETERS, Settings};
