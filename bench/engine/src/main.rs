//! `lockkit-bench-engine WORK TIMES` does one kind of work so many times, in virtual time and with
//! nothing left to chance: for callgrind to count.

use std::env;
use std::process::ExitCode;

use lockkit_bench_engine::{Stage, WORKS};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let work = arguments.next().and_then(|name| WORKS.iter().find(|work| work.name == name));
    let times = arguments.next().and_then(|times| times.parse().ok());
    let (Some(work), Some(times)) = (work, times) else {
        eprintln!("usage: lockkit-bench-engine WORK TIMES");
        return ExitCode::from(64);
    };
    work.perform(&Stage::virtual_time(), times);
    ExitCode::SUCCESS
}
