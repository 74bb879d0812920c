//! An agent: measures one library in a process of its own, as it is told to line by line. The
//! protocol is in `bench/peers/README.md`.

mod lockkit;
mod measure;

use std::time::Duration;

use lockkit_bench::Result;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

pub use self::lockkit::Lockkit;
use self::measure::Standing;
pub(crate) use self::measure::let_go_after;

/// A library on its servers, as it is to be measured.
pub trait Library: Send + Sync + 'static {
    /// One client with connections of its own.
    type Client: Client;

    /// Another client.
    fn connect(&self) -> impl Future<Output = Result<Self::Client>> + Send;
}

/// One client.
pub trait Client: Send + Sync + 'static {
    /// A lock of that name: what a user makes once and takes often.
    type Lock: Send + Sync + 'static;
    /// Proof of a hold.
    type Hold: Send + 'static;

    /// Makes a lock.
    fn lock(&self, name: &str) -> Result<Self::Lock>;

    /// Waits for it.
    fn acquire(&self, lock: &Self::Lock) -> impl Future<Output = Result<Self::Hold>> + Send;

    /// Lets go.
    fn release(
        &self,
        lock: &Self::Lock,
        hold: Self::Hold,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Does once what only a first use takes, so that it is no part of what is measured with so many
    /// clients.
    fn prepare(&self, name: &str, _clients: usize) -> impl Future<Output = Result<()>> + Send {
        async move {
            let lock = self.lock(name)?;
            let hold = self.acquire(&lock).await?;
            self.release(&lock, hold).await
        }
    }

    /// How long hand-overs take from this client to another, each after the other has waited for so
    /// long: `None` where there are none that are measured otherwise than by the two methods above.
    fn hand_overs(
        &self,
        _to: &Self,
        _name: &str,
        _waits: &[Duration],
    ) -> impl Future<Output = Result<Option<Vec<Duration>>>> + Send {
        async { Ok(None) }
    }
}

/// Answers to standard input, line by line, until its end.
///
/// # Errors
///
/// If the input cannot be read.
pub async fn serve<L: Library>(name: &str, version: &str, library: Result<L>) -> Result<()> {
    let connecting = async {
        let library = library?;
        library.connect().await?;
        Result::Ok(library)
    };
    let library = match connecting.await {
        Ok(library) => library,
        Err(error) => {
            answer(&json!({ "cannot": reason(&*error) }));
            return Ok(());
        }
    };
    answer(&json!({ "peer": name, "version": version }));
    let (mut lines, mut standing) = (BufReader::new(stdin()).lines(), None);
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match run(&library, &mut standing, &words).await {
            Ok(found) => found,
            Err(error) => json!({ "error": reason(&*error) }),
        });
    }
    Ok(())
}

async fn run<L: Library>(
    library: &L,
    standing: &mut Option<Standing<L::Client>>,
    words: &[&str],
) -> Result<Value> {
    Ok(match words {
        ["uncontended", name, pairs] => {
            let times = measure::uncontended(library, name, pairs.parse()?).await?;
            json!({ "nanoseconds": nanoseconds(&times) })
        }
        ["handover", name, waits @ ..] => {
            let waits = waits.iter().map(|wait| Ok(Duration::from_millis(wait.parse()?)));
            let waits = waits.collect::<Result<Vec<_>>>()?;
            let times = measure::hand_over(library, name, &waits).await?;
            json!({ "nanoseconds": nanoseconds(&times) })
        }
        ["contended", name, clients, section, milliseconds] => {
            let section = Duration::from_micros(section.parse()?);
            let time = Duration::from_millis(milliseconds.parse()?);
            let waits = measure::contended(library, name, clients.parse()?, section, time).await?;
            let waits: Vec<_> = waits.iter().map(|waits| nanoseconds(waits)).collect();
            json!({ "clients": waits, "seconds": time.as_secs_f64() })
        }
        ["hold", name] => {
            measure::hold(library, name).await?;
            json!({ "held": true })
        }
        ["take", name] => {
            let standing = match standing.take() {
                Some(known) if known.is_of(name) => standing.insert(known),
                _ => standing.insert(Standing::at(library, name).await?),
            };
            json!({ "at": standing.take().await? })
        }
        ["let-go"] => {
            let standing = standing.as_mut().ok_or("nothing was taken")?;
            json!({ "at": standing.let_go().await? })
        }
        _ => return Err(format!("no such workload: {words:?}").into()),
    })
}

fn nanoseconds(times: &[Duration]) -> Vec<u64> {
    times.iter().map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).collect()
}

/// An error and what is behind it.
pub(crate) fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(behind) = source {
        let behind_it = behind.to_string();
        if !text.contains(&behind_it) {
            text = format!("{text}: {behind_it}");
        }
        source = behind.source();
    }
    text
}

#[expect(clippy::print_stdout, reason = "the protocol")]
fn answer(what: &Value) {
    println!("{what}");
}
