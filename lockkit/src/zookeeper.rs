//! What only ZooKeeper can do, and its driver.

pub use lockkit_zk::{ZooKeeperDriver, transaction};
