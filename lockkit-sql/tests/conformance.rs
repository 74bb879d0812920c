//! The SQLite driver, on a database that all connections share.

use std::process::ExitCode;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::sqlite::{CAPABILITIES, SqliteDriver};

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("locks.db");
    Suite::new("sqlite", CAPABILITIES)
        .connect(move || {
            // The default limit for the shortest leases is too short for a disk under load.
            let url = format!("sqlite:{}?call_limit=30s", path.display());
            async move { Ok(SqliteDriver::connect(&url.parse()?).await?) }
        })
        // Writers of one file wait for each other, and each syncs the disk.
        .ttl(Duration::from_secs(3))
        .main()
}
