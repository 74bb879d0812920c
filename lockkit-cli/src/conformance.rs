//! `lockkit conformance`: the checks that every driver passes, on a backend of the user's.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use lockkit::driver::{Driver, OwnerId};
use lockkit::{BackendUrl, Error, Locker, Namespace, Result};
use lockkit_conformance::{Check, Outcome, Suite};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::select;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::args::Conformance;
use crate::report::{self, Volume, answer, chain, say};
use crate::signals::{Signals, Terminal};
use crate::table::{columns, roughly};
use crate::{backend, exit};

/// How many checks run at once. Most of the time they wait.
const AT_ONCE: usize = 8;

/// How many connections of a driver one check may have. Each may be up to three to the server, of
/// which MySQL and PostgreSQL accept 151 and 100 unless told otherwise; ZooKeeper 60 from one host.
const CONNECTIONS: usize = 32;

/// How many files may be open: checks hold a thousand locks at once, each of which may be a file.
const FILES: u64 = 10_240;

/// How long checks under way that are not waited for may still wait for answers to their asks.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long what is left is broken, since each break may hand the lock to the next.
const BREAKING: Duration = Duration::from_secs(60);

/// Runs the checks and returns the exit code.
pub(crate) fn conformance(options: &Conformance) -> u8 {
    let filter = options.filter.as_deref().unwrap_or_default();
    let chosen: Vec<_> =
        Suite::checks().iter().filter(|check| check.name().contains(filter)).collect();
    if chosen.is_empty() {
        say(format!("no check has `{filter}` in its name; see `lockkit conformance --list`"));
        return exit::USAGE;
    }
    if options.list {
        return answer(list(&chosen), exit::OK);
    }
    report::listen(Volume::Errors);
    allow_files();
    match attempt(options, chosen) {
        Ok(code) => code,
        Err(error) => backend::failed(&error),
    }
}

/// Raises the limit of open files, which is low for the sake of programs that are not these checks.
/// Where that is not possible, it stays as it is.
fn allow_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(FILES, |maximum| maximum.min(FILES));
    if current.is_some_and(|current| current < wanted) {
        _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn attempt(options: &Conformance, checks: Vec<&'static Check>) -> Result<u8> {
    let url = backend::url(&options.place)?;
    // Nobody else has this namespace, so everything in it may be removed.
    let id = &OwnerId::random().to_string()[..12];
    let namespace = Namespace::new(&format!("conformance-{id}"))?;
    let locker = backend::block_on(try_out(&url, namespace.clone(), options.ttl))??;
    let driver_id = locker.driver().id();
    let ttl = options.ttl.unwrap_or_else(|| default_ttl(driver_id));
    let suite = suite(&url, &**locker.driver(), namespace.clone()).ttl(ttl);
    drop(locker);
    backend::block_on(async {
        let mut signals = Signals::catch(Terminal::Shared)
            .map_err(|error| Error::config("this process", error.to_string()))?;
        let suite = Arc::new(suite);
        let code = run(Arc::clone(&suite), driver_id, checks.into(), &mut signals).await;
        let cleaned_up = select! {
            biased;
            signal = signals.end() => {
                say("what the checks have left is not removed");
                return Ok(exit::of_signal(signal));
            }
            outcome = clean_up(&url, namespace, &suite) => outcome,
        };
        if let Err(error) = cleaned_up {
            say(format!("what the checks have left runs out by itself, since {}", chain(&error)));
        }
        Ok(code)
    })?
}

/// Makes sure that this user may do what each check does, and that the driver can keep such a lease,
/// where the suite would take the nearest one.
async fn try_out(url: &BackendUrl, namespace: Namespace, ttl: Option<Duration>) -> Result<Locker> {
    let builder = Locker::builder_from_arc(connect(url).await?).namespace(namespace);
    let locker = match ttl {
        Some(ttl) => builder.ttl(ttl),
        None => builder,
    };
    let locker = locker.build()?;
    let use_it = async {
        locker.lock("rights")?.acquire_timeout(LAST_ANSWERS).await?.release().await?;
        match locker.capabilities().inspection {
            true => locker.held().await.map(drop),
            false => Ok(()),
        }
    };
    let used = use_it.await;
    _ = timeout(backend::CLEAN_UP, locker.shutdown()).await;
    match used {
        Err(error @ Error::Denied(_)) => {
            say("the checks take and list locks in namespaces that begin with `conformance-`");
            Err(error)
        }
        // Whatever else is wrong, the checks find out.
        _ => Ok(locker),
    }
}

/// Short, since there are many checks, but a lease that the backend keeps as it is.
fn default_ttl(driver: &str) -> Duration {
    Duration::from_secs(if driver == "etcd" { 5 } else { 1 })
}

fn list(checks: &[&Check]) -> String {
    let row = |check: &&Check| vec![check.name().to_owned(), check.asserts().to_owned()];
    columns(&checks.iter().map(row).collect::<Vec<_>>()).join("\n") + "\n"
}

async fn connect(url: &BackendUrl) -> Result<Arc<dyn Driver>> {
    Ok(Arc::clone(lockkit::connect_url(url).await?.driver()))
}

fn suite(url: &BackendUrl, driver: &dyn Driver, namespace: Namespace) -> Suite {
    let url = url.clone();
    let suite = Suite::new(driver.id(), driver.capabilities()).namespace(namespace);
    suite.connections(CONNECTIONS).connect_arc(move || {
        let url = url.clone();
        async move { Ok(connect(&url).await?) }
    })
}

/// Runs the checks, says how each came out, and returns the exit code.
///
/// After a signal, or if nobody can be told, no further check is begun. Those under way are waited
/// for, until the next signal, since they have a hand in what is to be removed.
async fn run(
    suite: Arc<Suite>,
    driver: &str,
    mut left: VecDeque<&'static Check>,
    signals: &mut Signals,
) -> u8 {
    let mut report = Report::new(driver, &left);
    let mut told = report.begin();
    let mut ended_by = None;
    let mut under_way = JoinSet::new();
    loop {
        if told.is_err() {
            left.clear();
        }
        while under_way.len() < AT_ONCE
            && let Some(check) = left.pop_front()
        {
            let suite = Arc::clone(&suite);
            under_way.spawn_blocking(move || (check, suite.run(check)));
        }
        select! {
            biased;
            signal = signals.end() => {
                left.clear();
                if ended_by.replace(signal).is_some() {
                    say("those under way are not waited for; what is left is removed");
                    break;
                }
                say("no further check is begun; those under way are waited for");
            }
            ended = under_way.join_next() => {
                let now = match ended {
                    Some(Ok((check, outcome))) => report.ended(check, outcome),
                    // Not for a check that panics: such a check has failed.
                    Some(Err(error)) => report.not_run(&error),
                    None => break,
                };
                told = told.and(now);
            }
        }
    }
    if ended_by.is_none() {
        told = told.and_then(|()| report.end());
    }
    if let Err(error) = told {
        say(format!("standard output: {error}"));
        return exit::IO;
    }
    match ended_by {
        Some(signal) => exit::of_signal(signal),
        None if report.failed == 0 => exit::OK,
        None => exit::NO,
    }
}

/// How checks came out, in the form of `cargo test`.
struct Report<'a> {
    driver: &'a str,
    begun: Instant,
    checks: usize,
    width: usize,
    passed: usize,
    ignored: usize,
    failed: usize,
    /// Those of the checks that failed.
    reasons: String,
}

impl<'a> Report<'a> {
    fn new(driver: &'a str, checks: &VecDeque<&Check>) -> Self {
        let width = checks.iter().map(|check| check.name().len()).max().unwrap_or_default();
        Self {
            driver,
            begun: Instant::now(),
            checks: checks.len(),
            width: driver.len() + "::".len() + width,
            passed: 0,
            ignored: 0,
            failed: 0,
            reasons: String::new(),
        }
    }

    fn begin(&self) -> io::Result<()> {
        let s = if self.checks == 1 { "" } else { "s" };
        print(format_args!("\nrunning {} check{s}\n", self.checks))
    }

    /// Reports a check, and counts it.
    fn ended(&mut self, check: &Check, outcome: Outcome) -> io::Result<()> {
        let name = format!("{}::{}", self.driver, check.name());
        let (count, word) = match outcome {
            Outcome::Passed => (&mut self.passed, "ok".into()),
            Outcome::Ignored(reason) => (&mut self.ignored, format!("ignored, {reason}")),
            Outcome::Failed(reason) => {
                let asserts = check.asserts();
                self.reasons +=
                    &format!("---- {name} ----\n{reason}\nwhat is checked: {asserts}\n\n");
                (&mut self.failed, "FAILED".into())
            }
            // There is no other outcome.
            other => (&mut self.failed, format!("FAILED, {other:?}")),
        };
        *count += 1;
        print(format_args!("test {name:0$} ... {word}\n", self.width))
    }

    fn not_run(&mut self, error: &JoinError) -> io::Result<()> {
        self.failed += 1;
        print(format_args!("a check was not run: {error}\n"))
    }

    fn end(&self) -> io::Result<()> {
        let Self { begun, passed, ignored, failed, reasons, .. } = self;
        let word = if *failed == 0 { "ok" } else { "FAILED" };
        let seconds = begun.elapsed().as_secs_f64();
        print(format_args!(
            "\n{reasons}test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; \
             finished in {seconds:.2}s\n\n"
        ))
    }
}

/// Unlike `print!`, tells if it failed.
fn print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

/// Removes what checks have left in their namespaces, all of which begin with `namespace`, and says
/// what cannot be removed. None of them takes a lock any more.
async fn clean_up(url: &BackendUrl, namespace: Namespace, suite: &Suite) -> Result<()> {
    // An ask that is answered later than that may leave a lock, until the lease is over.
    _ = timeout(LAST_ANSWERS, suite.stop()).await;
    let driver = connect(url).await?;
    let id = driver.id();
    let locker = Locker::builder_from_arc(driver).build()?;
    let broken = match locker.capabilities().inspection {
        true => break_all(&locker, suite.namespaces()).await,
        false => Ok(()),
    };
    locker.shutdown().await;
    broken?;
    let table = match url.parameter("hold") {
        Some("session") => "lockkit_session",
        _ => "lockkit_lock",
    };
    // Where it is not the one that tables and keys are looked for in.
    let schema =
        url.parameter("schema").map_or_else(String::new, |schema| format!("\"{schema}\"."));
    let in_path = || url.path().rsplit('/').next().filter(|_| !url.hosts().is_empty());
    let number = url.parameter("db").or_else(in_path).and_then(|number| number.parse::<u16>().ok());
    let in_database = match number {
        None | Some(0) => String::new(),
        Some(number) => format!(" -n {number}"),
    };
    match id {
        "file" => remove_folders(Path::new(url.path()), namespace.as_str())
            .map_err(|error| Error::config(url.path(), error.to_string()))?,
        // The nodes of a quorum are such servers, too.
        "redis" | "redlock" => say(format!(
            "the counters of fencing tokens stay, since a driver never removes them; to do so on \
             that server, or on each one of a quorum or primary of a cluster: redis-cli{in_database} --scan --pattern '{{{namespace}*' | xargs redis-cli{in_database} del",
            namespace = namespace.as_str(),
        )),
        "postgres" => say(format!(
            "the rows of the locks stay for a day, for their fencing tokens; to remove them now: \
             DELETE FROM {schema}{table} WHERE starts_with(namespace, '{namespace}')",
            namespace = namespace.as_str(),
        )),
        "mysql" => say(format!(
            "the rows of the locks stay for a day, for their fencing tokens; to remove them now: \
             DELETE FROM {table} WHERE namespace LIKE '{namespace}%'",
            namespace = namespace.as_str(),
        )),
        // Nothing stays.
        _ => (),
    }
    Ok(())
}

/// Breaks what is held in the namespaces, and says what that leaves. Goes on after an error, and
/// returns the first.
async fn break_all(locker: &Locker, namespaces: Vec<Namespace>) -> Result<()> {
    let lockers: Vec<_> = namespaces.into_iter().map(|it| locker.in_namespace(it)).collect();
    let breaks = async {
        let mut outcome = Ok(());
        for locker in &lockers {
            outcome = outcome.and(break_in(locker).await);
        }
        outcome
    };
    let outcome = timeout(BREAKING, breaks).await.unwrap_or(Ok(()));
    let mut left = Vec::new();
    for locker in &lockers {
        left.extend(locker.held().await?);
    }
    if left.is_empty() {
        return Ok(());
    }
    let ends = left.iter().filter_map(|lock| lock.holder()?.remaining());
    let last =
        ends.max().map_or_else(String::new, |last| format!(", the last for {}", roughly(last)));
    say(format!("{} locks of the checks are still held{last}", left.len()));
    outcome
}

/// Breaks what is held in the namespace of the locker, and what that hands to others.
async fn break_in(locker: &Locker) -> Result<()> {
    loop {
        let (mut broken, mut outcome) = (0, Ok(()));
        for lock in locker.held().await? {
            match locker.break_hold(lock.name().as_str(), None).await {
                Ok(holder) => broken += holder.iter().count(),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if broken == 0 || outcome.is_err() {
            return outcome;
        }
    }
}

/// Removes the folders of the namespaces whose names begin with `prefix`.
fn remove_folders(within: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(within)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
