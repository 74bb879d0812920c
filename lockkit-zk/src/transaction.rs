//! Writes to ZooKeeper that are carried out only while a lock is held.
//!
//! The servers check, in the same step as they write, that the node of the hold is there. So nothing
//! stale is applied, whatever clocks and networks do: what a holder sends too late is refused.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use lockkit_core::{BackendUrl, Locker};
//! use lockkit_zk::{ZooKeeperDriver, transaction::Transaction};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url: BackendUrl = "zookeeper://localhost".parse()?;
//! let driver = Arc::new(ZooKeeperDriver::connect(&url).await?);
//! let locker = Locker::from_url(driver.clone(), &url)?;
//! let guard = locker.lock("stock")?.acquire().await?;
//! let mut write = Transaction::new(guard.owner());
//! write.set_data("/shop/stock", b"41", None);
//! write.commit(&driver).await?;
//! # guard.release().await?;
//! # Ok(()) }
//! ```

use lockkit_core::BoxError;
use lockkit_core::driver::OwnerId;
pub use zookeeper_client as client;
use zookeeper_client::{CheckWriteError, CreateOptions, Error, MultiWriteResult, MultiWriter};

use crate::claims::{Node, Trace};
use crate::driver::ZooKeeperDriver;
use crate::error::Failure;
use crate::session::{is_same, within};

/// The longest transaction, in bytes: servers close the connection on a longer one, unless they are
/// configured otherwise (`jute.maxbuffer`).
pub const LONGEST: usize = 1_000_000;

/// What an operation takes beside its path and data, at most, unless it makes a node and has a long
/// list of rights.
const OVERHEAD: usize = 128;

/// Operations that are carried out all together, if the hold stands, or not at all.
///
/// Paths are those of the server: the path in the driver's URL is not prepended.
#[derive(Clone, Debug)]
pub struct Transaction<'a> {
    owner: OwnerId,
    operations: Vec<Operation<'a>>,
}

#[derive(Clone, Debug)]
enum Operation<'a> {
    Check { path: String, version: i32 },
    Create { path: String, data: Vec<u8>, options: CreateOptions<'a> },
    SetData { path: String, data: Vec<u8>, version: Option<i32> },
    Delete { path: String, version: Option<i32> },
}

/// Why nothing was written, or why that is not known.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The lock is no longer held. Nothing was written.
    #[error("the lock is no longer held")]
    Lost,
    /// The operation at this index cannot be carried out. Nothing was written.
    #[error("the operation at index {index} was refused")]
    Operation {
        /// Which one, from 0.
        index: usize,
        /// What the server said.
        source: Error,
    },
    /// The transaction is longer than [`LONGEST`], so it was not sent.
    #[error("the transaction is {0} bytes long")]
    TooLong(usize),
    /// There was no connection, so it was not sent.
    #[error("the servers cannot be reached")]
    Unreachable(#[source] BoxError),
    /// It was sent and not answered, so it may have been carried out, or may be yet.
    #[error("sent, but not answered")]
    Unknown(#[source] BoxError),
}

impl<'a> Transaction<'a> {
    /// An empty transaction for whoever holds a lock as `owner`: see
    /// [`Hold::owner`](lockkit_core::Hold::owner), which a guard has as well.
    pub fn new(owner: OwnerId) -> Self {
        Self { owner, operations: Vec::new() }
    }

    /// Checks that a node is there and that its data is of that version.
    pub fn check(&mut self, path: impl Into<String>, version: i32) -> &mut Self {
        self.add(Operation::Check { path: path.into(), version })
    }

    /// Makes a node.
    ///
    /// The client library does not tell how long the list of rights is, so each is reckoned as a short
    /// one. There is room for some 48,000 bytes more of them in a transaction of
    /// [`LONGEST`]; what is longer than that is sent nevertheless, and ends as [`Refused::Unknown`]
    /// with a lost connection.
    pub fn create(
        &mut self,
        path: impl Into<String>,
        data: impl Into<Vec<u8>>,
        options: CreateOptions<'a>,
    ) -> &mut Self {
        self.add(Operation::Create { path: path.into(), data: data.into(), options })
    }

    /// Writes to a node, of that version if one is given.
    pub fn set_data(
        &mut self,
        path: impl Into<String>,
        data: impl Into<Vec<u8>>,
        version: Option<i32>,
    ) -> &mut Self {
        self.add(Operation::SetData { path: path.into(), data: data.into(), version })
    }

    /// Removes a node, of that version if one is given.
    pub fn delete(&mut self, path: impl Into<String>, version: Option<i32>) -> &mut Self {
        self.add(Operation::Delete { path: path.into(), version })
    }

    /// Carries it out, through the session of the driver that the lock is held on.
    ///
    /// # Errors
    ///
    /// [`Refused`]. Only [`Refused::Unknown`] leaves it open whether anything was written.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the transaction may or may not be carried out, as a whole.
    pub async fn commit(&self, driver: &ZooKeeperDriver) -> Result<Vec<MultiWriteResult>, Refused> {
        let length = self.operations.iter().map(Operation::len).sum();
        if length > LONGEST {
            return Err(Refused::TooLong(length));
        }
        let limit = driver.shared.inspection_limit();
        let held = held(driver, self.owner).ok_or(Refused::Lost)?;
        let unreachable = |failure: Failure| Refused::Unreachable(failure.into());
        let session = driver.shared.sessions.connected(limit).await.map_err(unreachable)?;
        if !is_same(&session, &held.session) {
            return Err(Refused::Lost);
        }
        let mut writer = session.client().new_multi_writer();
        let bad = |index: usize| move |source| Refused::Operation { index, source };
        writer.add_check_version(&held.path, -1).map_err(bad(0))?;
        for (index, operation) in self.operations.iter().enumerate() {
            operation.add_to(&mut writer).map_err(bad(index))?;
        }
        let answer = match within(limit, writer.commit()).await {
            Err(failure) => return Err(Refused::Unknown(failure.into())),
            Ok(answer) => answer.map_err(CheckWriteError::from),
        };
        match answer {
            // The first result says that the hold stands.
            Ok(mut results) => Ok(results.split_off(1.min(results.len()))),
            Err(CheckWriteError::CheckFailed { source: Error::NoNode }) => Err(Refused::Lost),
            Err(CheckWriteError::OperationFailed { index, source }) => Err(bad(index)(source)),
            Err(
                CheckWriteError::RequestFailed { source } | CheckWriteError::CheckFailed { source },
            ) => Err(Refused::Unknown(source.into())),
        }
    }

    fn add(&mut self, operation: Operation<'a>) -> &mut Self {
        self.operations.push(operation);
        self
    }
}

impl Operation<'_> {
    fn len(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Check { path, .. } | Self::Delete { path, .. } => path.len(),
                Self::Create { path, data, .. } | Self::SetData { path, data, .. } => {
                    path.len() + data.len()
                }
            }
    }

    fn add_to(&self, writer: &mut MultiWriter<'_>) -> Result<(), Error> {
        match self {
            Self::Check { path, version } => writer.add_check_version(path, *version),
            Self::Create { path, data, options } => writer.add_create(path, data, options),
            Self::SetData { path, data, version } => writer.add_set_data(path, data, *version),
            Self::Delete { path, version } => writer.add_delete(path, *version),
        }
    }
}

/// The path of the node that stands for what `owner` holds: for checks in transactions that other
/// clients of the servers send. `None` if it holds nothing through this driver.
pub fn node(driver: &ZooKeeperDriver, owner: OwnerId) -> Option<String> {
    held(driver, owner).map(|node| node.path.to_string())
}

fn held(driver: &ZooKeeperDriver, owner: OwnerId) -> Option<Node> {
    match driver.shared.claims.find(owner)?.trace() {
        Trace::Hold(node) => Some(node),
        Trace::Nothing | Trace::Doubt(_) | Trace::Place(..) => None,
    }
}
