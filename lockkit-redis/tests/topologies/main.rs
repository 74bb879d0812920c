//! The driver on several servers that are one: what becomes of locks when a primary goes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod doctor;
#[path = "../server/documented.rs"]
mod documented;
#[path = "../server/patient.rs"]
mod patient;
mod replicas;
mod sentinel;
#[allow(dead_code, reason = "some of it is for tests with one server")]
#[path = "../server/support.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let trials = [cluster::trials(), doctor::trials(), replicas::trials(), sentinel::trials()];
    lockkit_testkit::run(trials.into_iter().flatten().collect())
}
