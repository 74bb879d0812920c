//! Measures lock libraries of Rust. The protocol is in `../README.md`.

mod peers;
mod workload;

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

use crate::peers::Peer;

type Failure = Box<dyn Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

#[tokio::main]
async fn main() -> Result<()> {
    // On a worker of the runtime, as in a server: this thread would be woken by another each time.
    tokio::spawn(serve(std::env::args().skip(1).collect())).await?
}

async fn serve(words: Vec<String>) -> Result<()> {
    let mut words = words.into_iter();
    let name = words.next().ok_or("usage: lockkit-bench-peers PEER LEASE SERVER...")?;
    let lease = Duration::from_millis(words.next().ok_or("no lease")?.parse()?);
    let peer = Peer { name, lease, servers: words.collect() };
    match peer.connect().await {
        Ok(_) => answer(json!({ "peer": peer.name, "version": peer.version() })),
        Err(error) => {
            answer(json!({ "cannot": error.to_string() }));
            return Ok(());
        }
    }
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(match workload::run(&peer, &words).await {
            Ok(figures) => figures,
            Err(error) => json!({ "error": error.to_string() }),
        });
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the protocol")]
fn answer(what: Value) {
    println!("{what}");
}
