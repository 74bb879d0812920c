//! The conformance suite, against one PostgreSQL.

#[path = "postgres/place.rs"]
mod place;

use std::process::ExitCode;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::postgres::{CAPABILITIES, PostgresDriver};

fn main() -> ExitCode {
    place::with_hooks(Suite::new("postgres", CAPABILITIES))
        .connect(|| async {
            // The default limit for the shortest leases is too short for a machine under load.
            let url = format!("{}?call_limit=5s", place::url()?);
            Ok(PostgresDriver::connect(&url.parse()?).await?)
        })
        // Each commit syncs a disk.
        .ttl(Duration::from_secs(3))
        .main()
}
