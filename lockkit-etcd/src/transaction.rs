//! Effects in etcd itself that only the holder of a lock can have.
//!
//! A holder may be paused for longer than its lease just before it writes. If it writes in a
//! transaction with the comparison [`is_held`], the write is then refused, whatever the holder's
//! clock says: etcd compares and writes in one step.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use etcd_client::{Client, Txn, TxnOp};
//! use lockkit_core::{BackendUrl, Locker};
//! use lockkit_etcd::{EtcdDriver, transaction};
//!
//! # async fn example(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
//! let url: BackendUrl = "etcd://localhost".parse()?;
//! let driver = Arc::new(EtcdDriver::connect(&url).await?);
//! let locker = Locker::from_url(driver.clone(), &url)?;
//! let guard = locker.lock("stock")?.acquire().await?;
//! let write = Txn::new()
//!     .when([transaction::is_held(&driver, &guard)])
//!     .and_then([TxnOp::put("stock/42", "7", None)]);
//! if !client.txn(write).await?.succeeded() {
//!     return Err("the lock is lost: nothing was written".into());
//! }
//! # guard.release().await?;
//! # Ok(())
//! # }
//! ```

pub use etcd_client;
use etcd_client::{Compare, CompareOp};
use lockkit_core::Hold;

use crate::driver::EtcdDriver;
use crate::layout::Queue;

/// A comparison that is true in etcd as long as the lock is held: that the holder's key is there,
/// and was created when the hold's fencing token says. The driver must be the one that the lock was
/// taken with, which knows the key.
///
/// A [`LockGuard`](lockkit_core::LockGuard) is passed as it is: `is_held(&driver, &guard)`. The
/// comparison is never true for a hold on another cluster, of another driver, or that was let go.
pub fn is_held(driver: &EtcdDriver, hold: &Hold) -> Compare {
    let token = hold.fencing_token().map(i64::from);
    match (driver.claims.key_of(hold.owner()), token) {
        (Some(key), Some(token)) => Compare::create_revision(&*key, CompareOp::Equal, token),
        // No key was ever created at a revision below zero.
        _ => {
            let prefix = Queue::of(hold.name(), driver.dialect).prefix().to_owned();
            Compare::create_revision(prefix, CompareOp::Equal, -1)
        }
    }
}
