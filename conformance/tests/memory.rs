//! The memory driver, in virtual time.

use std::future::ready;
use std::process::ExitCode;

use lockkit_conformance::Suite;
use lockkit_core::memory::{CAPABILITIES, MemoryDriver};

fn main() -> ExitCode {
    let server = MemoryDriver::new();
    Suite::new("memory", CAPABILITIES)
        .connect(move || ready(Ok(server.clone())))
        .virtual_time()
        .main()
}
