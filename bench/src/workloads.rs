//! What is measured, a file each.
#![expect(clippy::exhaustive_structs, reason = "what has no settings is named as it is")]

mod contended;
mod hand_over;
mod many_names;
mod recovery;
mod uncontended;
mod waiters;

use crate::Workload;

pub use contended::Contended;
pub use hand_over::HandOver;
pub use many_names::ManyNames;
pub use recovery::{Holder, Recovery};
pub use uncontended::Uncontended;
pub use waiters::Waiters;

/// All that need nothing but a subject. [`Recovery`] needs a program that can be killed.
pub const ALL: [&dyn Workload; 5] = [&Uncontended, &HandOver, &Contended, &ManyNames, &Waiters];
