//! Other libraries of locks, each driven from outside: `lockkit-peers LIBRARY URL...`.
//!
//! Each line of standard input asks for work, each line of standard output answers one: so that a
//! benchmark measures them in turn with lockkit, on the same servers.
//!
//! | asked | answered |
//! | --- | --- |
//! | `pairs N` | for each of N acquisitions with their release, nanoseconds |

mod rslock;

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockkit-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let library = arguments.next().ok_or("no library is named")?;
    let urls: Vec<_> = arguments.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let peer = match &*library {
        "rslock" => rslock::Peer::new(urls),
        other => return Err(format!("no library `{other}` is known").into()),
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let answer = match line.split_once(' ') {
            Some(("pairs", number)) => runtime.block_on(peer.pairs(number.parse()?))?,
            _ => return Err(format!("`{line}` is no work").into()),
        };
        let mut out = io::stdout().lock();
        let nanoseconds: Vec<_> = answer.iter().map(|time| time.as_nanos().to_string()).collect();
        writeln!(out, "{}", nanoseconds.join(" "))?;
    }
    Ok(())
}
