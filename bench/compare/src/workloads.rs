//! What is measured of every subject, by asking its agent.

mod contended;
mod hand_over;
mod recovery;
mod uncontended;

pub(crate) use self::contended::{cases, contended};
pub(crate) use self::hand_over::{TWO_PROCESSES, Waits, hand_over, hand_over_between};
pub(crate) use self::recovery::recovery;
pub(crate) use self::uncontended::Uncontended;

/// The workloads that are measured here, in the order of reports.
pub const WORKLOADS: [&str; 4] = ["uncontended", "hand-over", "contended", "recovery"];

/// A name of a lock that nobody else has.
pub(crate) fn name(workload: &str) -> String {
    format!("{workload}-{:016x}", fastrand::u64(..))
}
