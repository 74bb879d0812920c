//! The etcd driver against real servers and clusters, and the weather between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod diagnosis;
mod dialect;
mod keys;
mod leader;
mod lengthening;
mod looks;
mod news;
mod places;
mod restored;
mod rights;
mod support;
mod transaction;
mod weather;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(held) = transaction::hold() {
        return held;
    }
    let trials = [
        keys::trials(),
        lengthening::trials(),
        dialect::trials(),
        diagnosis::trials(),
        looks::trials(),
        news::trials(),
        places::trials(),
        weather::trials(),
        rights::trials(),
        restored::trials(),
        leader::trials(),
        transaction::trials(),
    ];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
