//! The driver of Redlock, over drivers of your own, or over servers that need a URL each.
//!
//! ```no_run
//! use lockkit::redis::RedisDriver;
//! use lockkit::redlock::{RedlockDriver, Settings};
//! use lockkit::{BackendUrl, Locker};
//!
//! # async fn example() -> lockkit::Result<()> {
//! let settings = Settings::default().max_ttl(std::time::Duration::from_secs(20));
//! let mut driver = RedlockDriver::builder().settings(settings);
//! for url in ["redis://me:one@a", "redis://me:two@b", "rediss://me:three@c"] {
//!     let url: BackendUrl = url.parse()?;
//!     driver = driver.node_at(url.to_string(), move || {
//!         let url = url.clone();
//!         async move { RedisDriver::connect(&url).await }
//!     });
//! }
//! // What the URLs say about a locker is not heeded here.
//! let locker = Locker::builder(driver.connect().await?).namespace("shop".parse()?).build()?;
//! let guard = locker.lock("orders/42")?.acquire().await?;
//! # guard.release().await }
//! ```

pub use lockkit_redlock::{Allow, PARAMETERS, RedlockBuilder, RedlockDriver, Settings};
