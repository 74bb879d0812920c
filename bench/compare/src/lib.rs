//! The comparison: every backend of lockkit, the floor under it, and the libraries that one would
//! pick instead, on the same private servers in the same run.
#![expect(
    clippy::exhaustive_structs,
    clippy::exhaustive_enums,
    reason = "no other crate depends on it"
)]

pub mod agent;
pub mod floors;
pub mod hired;
pub mod process;
pub mod report;
pub mod run;
pub mod runner;
mod scale;
pub mod servers;
pub mod studies;
pub mod subject;
mod times;
mod workloads;

pub use scale::Scale;
pub use workloads::WORKLOADS;
