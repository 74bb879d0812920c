//! The file driver, on a folder that all connections share.

use std::process::ExitCode;

use lockkit_conformance::Suite;
use lockkit_file::{CAPABILITIES, FileDriver};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than are ever open.
const FILES: u64 = 10_240;

fn main() -> ExitCode {
    // Each hold is an open file, and a check holds 1,000 locks. No limit at all is more than macOS
    // lets a process ask for.
    let files = getrlimit(Resource::Nofile);
    let current = files.maximum.map_or(FILES, |most| most.min(FILES));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..files })
        .expect("a process may open as many files as its hard limit says");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_owned();
    Suite::new("file", CAPABILITIES)
        .connect(move || {
            // The default limit for the shortest leases is too short for a disk under load.
            let url = format!("file:{}?call_limit=5s", path.display());
            async move { Ok(FileDriver::connect(&url.parse()?).await?) }
        })
        .main()
}
