//! The command `lockkit`: programs run under distributed locks, and a look at who holds them.
//!
//! Two processes stand between the shell and the program that `lockkit run` runs (on Linux):
//!
//! ```text
//! lockkit run      waits, holds and renews the lock; ends the program before the lock ends
//! └─ warden        ends everything below it when `lockkit run` is gone, however that came about
//!    └─ program    killed by the kernel when its warden is gone
//! ```
//!
//! See `docs/run.md` for what that promises and what it does not, and `docs/command.md` for
//! everything else.

mod args;
mod backend;
#[cfg(feature = "bench")]
mod bench;
mod breaking;
mod command;
mod conformance;
mod doctor;
mod exit;
mod gate;
mod generate;
mod json;
mod limits;
#[cfg(target_os = "linux")]
mod processes;
mod report;
mod run;
mod screen;
mod signals;
mod status;
#[cfg(target_os = "linux")]
mod suspension;
mod table;
mod tree;
mod voice;
mod waiting;
mod warden;
mod watch;

use std::env;
use std::process::ExitCode;

use crate::args::Command;

fn main() -> ExitCode {
    report::tell_of_panics();
    if let Some(code) = warden::step(env::args_os()) {
        return code.into();
    }
    let code = match args::parse() {
        Ok(Command::Run(options)) => run::run(&options),
        Ok(Command::Status(options)) => status::status(&options),
        Ok(Command::Break(options)) => breaking::break_hold(&options),
        Ok(Command::Doctor(options)) => doctor::doctor(&options),
        Ok(Command::Conformance(options)) => conformance::conformance(&options),
        #[cfg(feature = "bench")]
        Ok(Command::Bench(options)) => bench::bench(&options),
        Ok(Command::Completions(options)) => generate::completions(&options),
        Ok(Command::Man(options)) => generate::man(&options),
        Err(code) => code,
    };
    signals::end_by(code);
    code.into()
}
