//! Core of lockkit: the traits that users call, the engine behind them, and the [`driver`]
//! contract that backends meet.
//!
//! Applications depend on the facade crate `lockkit`; authors of drivers depend on this one.

mod capabilities;
mod claim;
mod clock;
pub mod driver;
mod error;
mod name;
mod token;
mod url;

pub use capabilities::{Capabilities, Fairness, Liveness};
pub use error::{BoxError, Error, Failure, Operation, Result};
pub use name::{LockName, Namespace};
pub use token::{FencingToken, ParseTokenError};
pub use url::{BackendUrl, COMMON, Host, Parameter, Parameters};
