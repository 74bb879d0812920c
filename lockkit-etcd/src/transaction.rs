//! Effects in etcd itself that only the holder of a lock can have.
//!
//! A holder may be paused for longer than its lease just before it writes. What it writes in a
//! transaction with the comparison [`is_held`] is refused then, whatever its clock says: etcd
//! compares and writes in one step.
//!
//! ```no_run
//! use etcd_client::{Client, Txn, TxnOp};
//! use lockkit_core::Hold;
//! use lockkit_etcd::transaction;
//!
//! # async fn example(client: &mut Client, hold: &Hold) -> Result<(), Box<dyn std::error::Error>> {
//! let write = Txn::new()
//!     .when([transaction::is_held(hold)])
//!     .and_then([TxnOp::put("stock/42", "7", None)]);
//! if !client.txn(write).await?.succeeded() {
//!     return Err("the lock is lost: nothing was written".into());
//! }
//! # Ok(())
//! # }
//! ```

pub use etcd_client;
use etcd_client::{Compare, CompareOp};
use lockkit_core::Hold;

use crate::layout::Queue;

/// What is true in etcd as long as the lock is held: that the holder's key is there, and was
/// created when the hold's fencing token says.
///
/// A [`LockGuard`](lockkit_core::LockGuard) is passed as it is: `is_held(&guard)`. For a hold on
/// another cluster, or of another driver, it is never true.
pub fn is_held(hold: &Hold) -> Compare {
    let key = Queue::of(hold.name()).key(hold.owner());
    // No key was ever created at a revision below nothing.
    let token = hold.fencing_token().and_then(|token| i64::try_from(token.get()).ok());
    Compare::create_revision(key, CompareOp::Equal, token.unwrap_or(-1))
}
