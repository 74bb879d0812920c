//! Checks that every driver of lockkit passes: ours, and yours.
//!
//! A driver's test binary is one call, with `harness = false` in its `[[test]]` section:
//!
//! ```no_run
//! # use lockkit_core::memory::{CAPABILITIES, MemoryDriver};
//! fn main() -> std::process::ExitCode {
//!     let server = MemoryDriver::new();
//!     lockkit_conformance::Suite::new("memory", CAPABILITIES)
//!         .connect(move || std::future::ready(Ok(server.clone())))
//!         .main()
//! }
//! ```
//!
//! Each check is a test of its own, such as `memory::driver::a_lease_runs_out`, with the usual
//! command line (`cargo test --test conformance -- a_lease`). What the driver's capabilities do not
//! cover is shown as ignored, with the reason. The names of checks are part of this crate's
//! interface: one is removed or renamed only with a new major version.
//!
//! Planted defects show that the checks can fail; `DEFECTS.md` in the repository is the matrix.
#![doc = ""]
#![doc = include_str!("../CHECKS.md")]

#[macro_use]
mod context;
mod asks;
mod checks;
mod connection;
mod names;
mod required;
mod run;
mod setup;
mod suite;

pub use checks::{Check, Need};
pub use libtest_mimic;
pub use suite::{Outcome, Suite};
