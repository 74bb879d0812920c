//! `lockkit bench`: how long locks take on the user's own backends.

use std::io::ErrorKind;
use std::path::Path;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use std::{env, fs};

use indicatif::{ProgressBar, ProgressStyle};
use lockkit::{BackendUrl, Error, Fairness, Result};
use lockkit_bench::workloads::{self, Holder, Recovery};
use lockkit_bench::{Outcome, Plan, Scale, Step, Subject, Workload, report as tables};
use percent_encoding::utf8_percent_encode;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::select;
use tokio::time::timeout;

use crate::args::Bench;
use crate::report::{self, Volume, answer, chain, say};
use crate::signals::{Signals, Terminal};
use crate::{backend, exit, json};

/// The names of the workloads.
pub(crate) const WORKLOADS: [&str; 6] =
    ["uncontended", "hand-over", "contended", "many-names", "waiters", "recovery"];

/// Measures, and returns the exit code.
pub(crate) fn bench(options: &Bench) -> u8 {
    report::listen(Volume::Errors);
    match attempt(options) {
        Ok(code) => code,
        Err(error) => backend::failed(&error),
    }
}

fn attempt(options: &Bench) -> Result<u8> {
    let folder = TempDir::with_prefix("lockkit-bench-");
    let folder = folder.map_err(|error| Error::config("a folder", chain(&error)))?;
    let places = places(options, folder.path())?;
    if places.is_empty() {
        say("there is nothing to measure: no URL is given, and --no-embedded");
        return Ok(exit::USAGE);
    }
    let ended = backend::block_on(async {
        let mut signals = Signals::catch(Terminal::Shared)
            .map_err(|error| Error::config("this process", error.to_string()))?;
        select! {
            biased;
            // What is held elsewhere runs out.
            signal = signals.end() => Ok(exit::of_signal(signal)),
            code = measure_all(options, places) => code,
        }
    });
    remove(folder.path());
    ended?
}

/// Removes a folder in which a thread may still be at work, and may make a file while it is
/// emptied.
fn remove(folder: &Path) {
    let until = Instant::now() + backend::CLEAN_UP;
    while let Err(error) = fs::remove_dir_all(folder) {
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        if Instant::now() > until {
            say(format!("{} is left: {error}", folder.display()));
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Measures what was asked for, says how that came out, and returns the exit code.
async fn measure_all(options: &Bench, places: Vec<Place>) -> Result<u8> {
    let (scale, rounds) = match options.quick {
        true => (Scale::quick(), 3),
        false => (Scale::full(), 5),
    };
    let rounds = options.rounds.map_or(rounds, usize::from);
    let seed = options.seed.unwrap_or_else(some_seed);
    let setting = Setting::now(seed, rounds);
    let mut worst = match options.json {
        true => exit::OK,
        false => answer(heading(&setting), exit::OK),
    };
    let subjects = subjects(options, &places).await;
    let plan = Plan::new(subjects, scale).rounds(rounds).seed(seed);
    let recovery = Recovery::with(move |holder| hold(holder, &places));
    let all = workloads::ALL.into_iter().chain([&recovery as &dyn Workload]);
    let wanted = |workload: &&dyn Workload| {
        options.workloads.is_empty() || options.workloads.iter().any(|name| name == workload.name())
    };
    let mut outcomes = Vec::new();
    for workload in all.filter(wanted) {
        let outcome = measure(&plan, workload).await;
        let code = code_of(&outcome);
        worst = worst.max(match options.json {
            true => code,
            false => answer(tables::table(&outcome) + "\n", code),
        });
        outcomes.push(outcome);
    }
    Ok(match options.json {
        true => answer(json::outcomes(&setting, &outcomes)?, worst),
        false => worst,
    })
}

/// Where something is measured.
struct Place {
    label: String,
    /// With its password.
    url: String,
    parsed: BackendUrl,
}

impl Place {
    fn new(label: Option<&str>, url: &str) -> Result<Self> {
        let parsed: BackendUrl = url.parse()?;
        // Its password is not shown.
        let label = label.map_or_else(|| parsed.to_string(), str::to_owned);
        Ok(Self { label, url: url.to_owned(), parsed })
    }
}

fn places(options: &Bench, folder: &Path) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    if !options.no_embedded {
        let folder = backend::text(folder.as_os_str(), "the folder for temporary files")?;
        let folder = utf8_percent_encode(folder, backend::ENCODED);
        let urls = [
            ("memory", format!("memory:bench-{:016x}", some_seed())),
            ("file", format!("file:{folder}")),
            ("sqlite", format!("sqlite:{folder}/locks.db")),
        ];
        for (label, url) in urls {
            places.push(Place::new(Some(label), &url)?);
        }
    }
    if let Some(url) = backend::of_environment()? {
        places.push(Place::new(None, &url)?);
    }
    for url in &options.urls {
        places.push(Place::new(None, backend::text(url, "--url")?)?);
    }
    Ok(places)
}

async fn subjects(options: &Bench, places: &[Place]) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for place in places {
        let subject = Subject::at(&place.label, place.parsed.clone());
        if options.fair && is_fair_on_request(&place.parsed).await {
            subjects.push(subject.clone().fair());
        }
        subjects.push(subject);
    }
    subjects
}

/// Asked of the driver itself, since a parameter of the URL may say what it can do.
async fn is_fair_on_request(url: &BackendUrl) -> bool {
    // A backend that cannot be reached says so when it is measured.
    let Ok(locker) = lockkit::connect_url(url).await else { return false };
    let fairness = locker.capabilities().fairness;
    _ = timeout(backend::CLEAN_UP, locker.shutdown()).await;
    fairness == Fairness::OnRequest
}

/// A program that holds a lock until it is killed: this one.
fn hold(holder: &Holder<'_>, places: &[Place]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap_or_else(|_| "lockkit".into()));
    if let Some(place) = places.iter().find(|place| place.parsed == *holder.subject.url()) {
        command.env(backend::VARIABLE, &place.url);
    }
    command.args(["run", "--quiet"]);
    if let Some(lease) = holder.lease {
        command.arg("--ttl").arg(humantime::format_duration(lease).to_string());
    }
    command.args([holder.name, "--", "sh", "-c", "echo; exec cat"]);
    command
}

async fn measure(plan: &Plan, workload: &dyn Workload) -> Outcome {
    // Where standard error is not a terminal, nothing is shown.
    let bar = ProgressBar::new(0).with_style(style());
    bar.set_prefix(workload.name());
    let outcome = plan
        .run(workload, |step: Step<'_>| {
            bar.set_length(step.total as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.subject.label().to_owned());
        })
        .await;
    bar.finish_and_clear();
    outcome
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{prefix:12} {bar:30} {pos}/{len} {wide_msg}");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// What the figures depend on beside the backends.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) rounds: usize,
    pub(crate) cpus: Option<usize>,
    /// At the beginning.
    pub(crate) load: Option<f64>,
}

impl Setting {
    fn now(seed: u64, rounds: usize) -> Self {
        let cpus = available_parallelism().ok().map(Into::into);
        // Only Linux tells.
        let load = std::fs::read_to_string("/proc/loadavg").ok();
        let load = load.and_then(|load| load.split(' ').next()?.parse().ok());
        Self { seed, rounds, cpus, load }
    }
}

fn heading(setting: &Setting) -> String {
    let Setting { seed, rounds, cpus, load } = setting;
    let cpus = cpus.map_or_else(|| "?".into(), |number| number.to_string());
    let load = load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}"));
    format!("seed {seed}, rounds {rounds}, CPUs {cpus}, load {load} when it began\n\n")
}

fn code_of(outcome: &Outcome) -> u8 {
    // It is not a failure that locks in memory end with their process.
    let failed = |(place, rows): (&str, bool)| rows && place != "memory";
    let outcomes = outcome.subjects.iter().map(|one| (&*one.label, one.rows.is_err()));
    if outcomes.into_iter().any(failed) { exit::NO } else { exit::OK }
}

fn some_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id()) >> 32
}
