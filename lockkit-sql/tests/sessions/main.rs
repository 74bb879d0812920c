//! Locks of sessions against real servers, and the weather between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod doubts;
mod holds;
mod inspect;
mod network;
mod pooler;
mod requests;
mod support;
#[path = "../sweeps/mod.rs"]
mod sweeps;
mod users;
mod waiting;
mod weather;

use std::process::ExitCode;

fn main() -> ExitCode {
    let trials = [
        clock::trials(),
        doubts::trials(),
        holds::trials(),
        inspect::trials(),
        pooler::trials(),
        requests::trials(),
        users::trials(),
        waiting::trials(),
        weather::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
