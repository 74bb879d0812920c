//! The PostgreSQL driver against real servers, and the weather between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod diagnosis;
mod layout;
mod news;
mod queue;
mod rows;
mod statements;
mod support;
#[path = "../sweeps/mod.rs"]
mod sweeps;
mod tls;
mod weather;

use std::process::ExitCode;

fn main() -> ExitCode {
    let trials = [
        layout::trials(),
        rows::trials(),
        statements::trials(),
        queue::trials(),
        news::trials(),
        tls::trials(),
        weather::trials(),
        diagnosis::trials(),
        clock::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
