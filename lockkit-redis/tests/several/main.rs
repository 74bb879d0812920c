//! The conformance suite, against several Redis servers that are one.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

mod cluster;
#[path = "../server/patient.rs"]
mod patient;
mod replicas;
mod sentinel;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most checks wait most of the time.
    arguments.test_threads.get_or_insert(8);
    let mut trials = cluster::suite().trials();
    for suite in [sentinel::suite(), replicas::suite()] {
        trials.extend(suite.trials().into_iter().filter(concerns_connections));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What is left out is about the engine, to which all are one; the cluster has it all.
fn concerns_connections(check: &Trial) -> bool {
    ["::driver::", "_cut", "_answer", "turns"].iter().any(|part| check.name().contains(part))
}
