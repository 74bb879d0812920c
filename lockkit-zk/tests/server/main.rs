//! The driver against real servers, and the weather between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counter;
mod diagnosis;
mod ensemble;
mod inspection;
mod layout;
mod queue;
mod sessions;
mod support;
mod tick;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod weather;

use std::process::ExitCode;

fn main() -> ExitCode {
    let trials = [
        layout::trials(),
        counter::trials(),
        queue::trials(),
        sessions::trials(),
        weather::trials(),
        ensemble::trials(),
        tick::trials(),
        transaction::trials(),
        diagnosis::trials(),
        inspection::trials(),
        #[cfg(feature = "tls")]
        tls::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
