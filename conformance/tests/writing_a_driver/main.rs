//! The driver of `docs/writing-a-driver.md`, and its conformance.

pub mod driver;
pub mod server;

use std::process::ExitCode;
use std::sync::Arc;

use lockkit_conformance::Suite;

use crate::driver::{CAPABILITIES, LineDriver, key};
use crate::server::Server;

fn main() -> ExitCode {
    let server = Server::start();
    let (address, revoking, severing) = (server.address(), Arc::clone(&server), server);
    Suite::new("line", CAPABILITIES)
        .connect(move || async move { Ok(LineDriver::connect(address).await?) })
        .revoke(move |name| {
            revoking.revoke(&key(&name));
            std::future::ready(Ok(()))
        })
        .sever(move || {
            severing.hang_up();
            std::future::ready(Ok(()))
        })
        .main()
}
