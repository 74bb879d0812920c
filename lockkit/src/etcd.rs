//! What only etcd can do, and its driver.
//!
//! ```no_run
//! # use std::sync::Arc;
//! use lockkit::etcd::{EtcdDriver, transaction};
//! use lockkit::{BackendUrl, Locker};
//!
//! # async fn example() -> lockkit::Result<()> {
//! let url: BackendUrl = "etcd://localhost?namespace=shop".parse()?;
//! let driver = Arc::new(EtcdDriver::connect(&url).await?);
//! let locker = Locker::from_url(driver.clone(), &url)?;
//! let guard = locker.lock("stock")?.acquire().await?;
//! // True in etcd for as long as the lock is held: for a transaction of your own.
//! let held = transaction::is_held(&driver, &guard);
//! # guard.release().await }
//! ```

pub use lockkit_etcd::{EtcdDriver, transaction};
