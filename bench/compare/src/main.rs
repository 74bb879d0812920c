//! `lockkit-compare`: measures lockkit beside the floor under it and beside other libraries.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use lockkit_bench::Result;
use lockkit_compare::agent::{self, Lockkit};
use lockkit_compare::floors;

/// Measures lockkit, the floor under it, and the libraries that one would pick instead.
#[derive(Debug, clap::Parser)]
#[command(name = "lockkit-compare", version)]
enum Command {
    /// An agent that measures lockkit: see `bench/peers/README.md`.
    #[command(hide = true)]
    Agent {
        /// `lockkit` or `lockkit-fair`.
        peer: String,
        /// In milliseconds.
        lease: u64,
        url: String,
    },
    /// An agent that measures the requests of lockkit, sent raw.
    #[command(hide = true)]
    Floor {
        /// Such as `redis` or `postgres-session`.
        backend: String,
        /// In milliseconds; nothing lasts that long.
        lease: u64,
        urls: Vec<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Command::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockkit-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Agent { peer, lease, url } => {
            let library = Lockkit::at(url, Duration::from_millis(lease));
            let library = match &*peer {
                "lockkit-fair" => library.fair(),
                _ => library,
            };
            agent::serve(&peer, env!("CARGO_PKG_VERSION"), Ok(library)).await
        }
        Command::Floor { backend, urls, .. } => floors::run(&backend, &urls).await,
    }
}
