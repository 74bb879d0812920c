//! The contract of drivers, checked on five nodes in memory, in virtual time.

use lockkit_conformance::Suite;
use lockkit_core::memory::MemoryDriver;
use lockkit_redlock::{CAPABILITIES, RedlockDriver};

fn main() -> std::process::ExitCode {
    let nodes: [MemoryDriver; 5] = std::array::from_fn(|_| MemoryDriver::new());
    let mut capabilities = CAPABILITIES;
    // They would hand the lock over, each for itself, so nobody waits there.
    capabilities.notification = false;
    Suite::new("redlock", capabilities)
        .by_votes()
        .connect(move || {
            let nodes = nodes.clone();
            async move {
                let names = ["one", "two", "three", "four", "five"];
                let named = names.into_iter().zip(nodes);
                let driver = RedlockDriver::builder();
                let driver = named.fold(driver, |driver, (name, node)| driver.node(name, node));
                Ok(driver.connect().await?)
            }
        })
        .virtual_time()
        .main()
}
