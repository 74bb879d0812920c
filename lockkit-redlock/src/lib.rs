//! Redlock driver of lockkit: a lock that a majority of independent nodes grants.
//!
//! Good for locks that are to go on while a node is down, where two holders at once would cost
//! something and break nothing: it gives **no fencing token**, and its exclusion rests on clocks.
//! For more, take one backend that replicates by consensus, such as ZooKeeper or etcd.
//!
//! The algorithm is [Redlock](https://redis.io/docs/latest/develop/use/patterns/distributed-locks/),
//! all of it, the delayed restart included. The nodes are usually Redis servers, and may be any
//! driver whose holds are leases:
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
//! What it guarantees is told in `docs/redlock.md`.

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
mod waiting;

pub use builder::RedlockBuilder;
pub use driver::{CAPABILITIES, RedlockDriver};
pub use settings::{PARAMETERS, Settings};
