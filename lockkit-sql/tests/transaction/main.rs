//! Locks inside the user's transaction, on real databases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelled;
mod gate;
mod locks;
mod meeting;
mod removal;
mod setup;
mod snapshots;
mod stock;
mod stopped;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = stopped::hold() {
        return code;
    }
    let trials = [
        setup::trials(),
        locks::trials(),
        snapshots::trials(),
        meeting::trials(),
        removal::trials(),
        stock::trials(),
        gate::trials(),
        stopped::trials(),
        cancelled::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
