//! Locks inside the user's transaction, on real databases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelled;
mod gate;
mod locks;
mod meeting;
mod setup;
mod snapshots;
mod stock;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let trials = [
        setup::trials(),
        locks::trials(),
        snapshots::trials(),
        meeting::trials(),
        stock::trials(),
        gate::trials(),
        cancelled::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
