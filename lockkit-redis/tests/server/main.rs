//! The driver against real servers of its own, and the weather between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod diagnosis;
mod documented;
mod gate;
mod holder;
mod inspect;
mod layout;
mod news;
mod patient;
mod plain;
mod queue;
mod roads;
mod support;
mod tokens;
mod waiters;
mod weather;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(held) = gate::hold() {
        return held;
    }
    let trials = [
        layout::trials(),
        tokens::trials(),
        waiters::trials(),
        queue::trials(),
        news::trials(),
        inspect::trials(),
        diagnosis::trials(),
        roads::trials(),
        gate::trials(),
        plain::trials(),
        weather::trials(),
        holder::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
