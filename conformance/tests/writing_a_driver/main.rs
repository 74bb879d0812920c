//! The driver of `docs/writing-a-driver.md`, and its conformance.

pub mod driver;
pub mod server;

use std::future::ready;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use lockkit_conformance::Suite;

use crate::driver::{CAPABILITIES, LineDriver, key};
use crate::server::Server;

fn main() -> io::Result<ExitCode> {
    let server = Server::start()?;
    let (address, revoking, severing) =
        (server.address(), Arc::clone(&server), Arc::clone(&server));
    let (pausing, going_on) = (Arc::clone(&server), server);
    let suite = Suite::new("line", CAPABILITIES)
        .connect(move || async move { Ok(LineDriver::connect(address).await?) })
        .revoke(move |name| {
            revoking.revoke(&key(&name));
            ready(Ok(()))
        })
        .sever(move || {
            severing.hang_up();
            ready(Ok(()))
        })
        .silence(
            move || {
                pausing.pause();
                ready(Ok(()))
            },
            move || {
                going_on.go_on();
                ready(Ok(()))
            },
        );
    Ok(suite.main())
}
