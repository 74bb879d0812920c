//! Core of lockkit: the traits that users call, the engine behind them, and the [`driver`]
//! contract that backends meet.
//!
//! Applications depend on the facade crate `lockkit`; authors of drivers depend on this one.

mod alarm;
mod capabilities;
mod claim;
mod clock;
mod crowd;
mod driven;
pub mod driver;
mod engine;
mod error;
mod fenced;
mod guard;
mod hex;
mod hold;
mod inspect;
mod keeper;
mod label;
mod lock;
mod locker;
pub mod memory;
#[cfg(feature = "metrics")]
mod meter;
#[cfg(not(feature = "metrics"))]
#[path = "meter_off.rs"]
mod meter;
mod name;
mod nursery;
mod options;
mod owner;
mod pace;
mod parameters;
mod pointers;
mod progress;
mod pursuit;
mod tenure;
mod token;
mod traits;
mod turns;
mod url;

pub use capabilities::{Capabilities, Fairness, Liveness};
pub use claim::OwnerId;
pub use clock::Clock;
pub use driver::ErrorKind;
pub use error::{BoxError, Error, Failure, Operation, Result};
pub use fenced::{FencedCell, Stale};
pub use guard::{LeasedGuard, LeasedHold, LockGuard};
pub use hold::Hold;
pub use inspect::{Diagnosis, Grade, Holder, LockStatus, Waiter};
pub use label::Label;
pub use lock::{AnyEnd, AnyOrder, Fifo, Leased, Lock};
pub use locker::{Locker, LockerBuilder};
#[cfg(feature = "metrics")]
pub use meter::{METRICS, Metric, MetricKind};
pub use name::{LockName, Namespace};
pub use options::{AcquireOptions, Lease, Renew, Wait};
pub use owner::Owner;
pub use parameters::{COMMON_PARAMETERS, Parameter, Parameters};
pub use token::{FencingToken, ParseTokenError};
pub use traits::{DistributedLock, FairLock, LeasedLock, LockExt, ReentrantLock};
pub use url::{BackendUrl, Host};
