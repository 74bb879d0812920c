//! The command `lockkit`: any program, run under a distributed lock.
//!
//! Three processes stand between the shell and the program while it runs (on Linux):
//!
//! ```text
//! lockkit run      waits, holds and renews the lock; ends the program before the lock ends
//! └─ warden        ends everything below it when `lockkit run` is gone, however that came about
//!    └─ program    killed by the kernel when its warden is gone
//! ```
//!
//! See `docs/run.md` for what that promises and what it does not.

mod args;
mod backend;
mod exit;
mod report;
mod run;
mod signals;
mod tree;
mod warden;

use std::env;
use std::process::ExitCode;

use crate::args::Command;

fn main() -> ExitCode {
    if let Some(code) = warden::step(env::args_os()) {
        return code.into();
    }
    match args::parse() {
        Ok(Command::Run(options)) => run::run(&options).into(),
        Err(code) => code.into(),
    }
}
