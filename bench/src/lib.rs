//! How long locks take on a backend: workloads that any lockkit URL can be put through.
//!
//! A [`Workload`] is measured over [`Subject`]s in several rounds, in an order that a seed decides
//! and that differs from round to round, so that whatever else a machine does is shared among them.
//! Each figure is reported as the median of the rounds, with the least and the most.
//!
//! ```
//! use lockkit_bench::{Plan, Scale, Subject, report, workloads};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_bench::Result<()> {
//! let subject = Subject::new("memory", "memory:example")?;
//! let plan = Plan::new(vec![subject], Scale::quick()).rounds(2).seed(7);
//! let outcome = plan.run(&workloads::Uncontended, |_| ()).await;
//! assert!(report::table(&outcome).contains("P99.9"));
//! # Ok(()) }
//! ```
//!
//! Locks are taken under names that nobody else has, in the namespace of the URL. Once released,
//! they leave there what released locks leave on that backend.

mod counted;
mod figure;
mod keeping;
mod load;
mod plan;
pub mod process;
pub mod report;
mod scale;
mod subject;
mod workload;
pub mod workloads;

pub use counted::Counted;
pub use figure::{Figure, Spread, Summary, Unit};
pub use keeping::Keeping;
pub use load::{QUANTILES, are_enough, fairness};
pub use plan::{Outcome, Plan, Row, Step, SubjectOutcome};
pub use scale::Scale;
pub use subject::{AnyLock, Client, Subject};
pub use workload::{Reading, Workload};

/// What ends a measurement: an error of a lock, or of the machine that it is measured on.
pub type Result<T> = std::result::Result<T, lockkit::BoxError>;
