//! The conformance suite, against the sessions of one PostgreSQL.

#[path = "postgres/place.rs"]
mod place;

use std::process::ExitCode;
use std::time::Duration;

use lockkit_conformance::Suite;
use lockkit_sql::postgres::session::{CAPABILITIES, PostgresSessionDriver};

fn main() -> ExitCode {
    place::with_hooks(Suite::new("postgres", CAPABILITIES))
        .connect(|| async {
            let url = format!("{}?hold=session&ttl=2s&call_limit=5s", place::url()?);
            Ok(PostgresSessionDriver::connect(&url.parse()?).await?)
        })
        .ttl(Duration::from_secs(2))
        .main()
}
