//! `lockkit-compare`: measures lockkit beside the floor under it and beside other libraries.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use lockkit_bench::Result;
use lockkit_compare::agent::{self, Lockkit};
use lockkit_compare::run::Run;
use lockkit_compare::runner::{self, Gauge, Plan};
use lockkit_compare::servers::Backend;
use lockkit_compare::studies::{self, Extent, Findings};
use lockkit_compare::subject::Agents;
use lockkit_compare::{Scale, floors, report};
use tokio::signal::unix::{SignalKind, signal};

/// Measures lockkit, the floor under it, and the libraries that one would pick instead.
#[derive(Debug, clap::Parser)]
#[command(name = "lockkit-compare", version)]
enum Command {
    /// Measures, and writes `DIR/run.json` and the reports of it.
    Run(Measure),
    /// Makes the reports of `DIR/run.json` anew.
    Report { dir: PathBuf },
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
    /// A process that has many holds or many waiters, to be studied.
    #[command(hide = true)]
    Client { words: Vec<String> },
}

#[derive(Debug, clap::Args)]
struct Measure {
    /// Where to write what was found out.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The folder with the agents of other libraries, as `bench/run` makes it.
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    peers: PathBuf,
    /// Little of everything, to see that all can be measured.
    #[arg(long)]
    quick: bool,
    /// These backends only, such as `redis,etcd`.
    #[arg(long, value_name = "BACKEND", value_delimiter = ',')]
    only: Vec<String>,
    /// What decides the order [default: another each time].
    #[arg(long)]
    seed: Option<u64>,
    /// The studies only: many holds, many waiters, a stock to be sold, locks within a process.
    #[arg(long)]
    studies: bool,
    /// How many rounds [default: 3, with --quick 2].
    #[arg(long)]
    rounds: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    // On a worker of the runtime, as in a server: this thread would be woken by another each time.
    match tokio::spawn(run(Command::parse())).await.map_err(Into::into).flatten() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockkit-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Run(options) => Box::pin(measure(options)).await,
        Command::Report { dir } => report::write(&Run::read(&dir.join("run.json"))?, &dir),
        Command::Agent { peer, lease, url } => {
            let library = Lockkit::at(url, Duration::from_millis(lease));
            let library = match &*peer {
                "lockkit-fair" => library.fair(),
                _ => library,
            };
            agent::serve(&peer, env!("CARGO_PKG_VERSION"), Ok(library)).await
        }
        Command::Floor { backend, urls, .. } => floors::run(&backend, &urls).await,
        Command::Client { words } => {
            let client = studies::Client::parse(&words)?;
            Box::pin(studies::client(&client)).await
        }
    }
}

async fn measure(options: Measure) -> Result<()> {
    let (scale, rounds) = match options.quick {
        true => (Scale::quick(), 2),
        false => (Scale::full(), 3),
    };
    let backends = backends(&options.only)?;
    let plan = Plan {
        backends: if options.studies { Vec::new() } else { backends.clone() },
        scale,
        rounds: options.rounds.unwrap_or(rounds),
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
    };
    let agents = Agents { own: std::env::current_exe()?, peers: options.peers };
    std::fs::create_dir_all(&options.out)?;
    let extent = if options.quick { Extent::quick() } else { Extent::full() };
    let extent = extent.seed(plan.seed);
    let tell = |what: &str| eprintln!("{what}");
    let measured = async {
        let gauge = Gauge::begin()?;
        let mut run = runner::run(&plan, |servers| agents.subjects(servers), tell).await?;
        let studied = Box::pin(studies::run(&backends, &extent, &agents.own, tell)).await;
        let Findings { entries, absences } = studied;
        run.entries.extend(entries);
        run.absences.extend(absences);
        (run.setup.seconds, run.setup.noise) = gauge.read()?;
        Result::Ok(run)
    };
    let run = tokio::select! {
        run = measured => run?,
        // Agents and servers end with what is dropped here.
        interrupted = interruption() => return interrupted,
    };
    run.write(&options.out.join("run.json"))?;
    report::write(&run, &options.out)
}

/// When somebody wants this to end.
async fn interruption() -> Result<()> {
    let (mut interrupt, mut end) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => (),
        _ = end.recv() => (),
    }
    Err("interrupted: nothing was written".into())
}

fn backends(wanted: &[String]) -> Result<Vec<Backend>> {
    let known = Backend::ALL.map(|backend| backend.names().1);
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(&name.as_str())) {
        let mut known = known.to_vec();
        known.dedup();
        return Err(format!("no backend `{unknown}`, there is {}", known.join(", ")).into());
    }
    let is_wanted = |backend: &Backend| {
        wanted.is_empty() || wanted.iter().any(|name| name == backend.names().1)
    };
    Ok(Backend::ALL.into_iter().filter(is_wanted).collect())
}
