//! What a lock between processes costs where a lock within one would do: the drivers that need no
//! server, and what the standard or the system has instead.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fastrand::Rng;
use lockkit::Locker;
use lockkit_bench::{Result, Unit};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tokio::sync::{Barrier, Mutex};
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::timeout;

use super::{Extent, Findings, What, figure};
use crate::run::{Figure, Role, Round};
use crate::servers::{Backend, Servers};

/// The name of the study.
pub(super) const NAME: &str = "granularity";

/// How many tasks want the lock.
const CASES: [(usize, &str); 2] = [(1, "uncontended"), (8, "8 tasks")];

/// A lock and what takes it.
#[async_trait]
trait Local: Send + Sync {
    fn subject(&self) -> (&'static str, Role);

    /// Takes it and lets it go, so often as can be until then, each time for whoever else waits.
    async fn pairs(self: Arc<Self>, until: Instant) -> Result<Vec<Duration>>;
}

pub(super) async fn study(servers: &Servers, extent: &Extent) -> Findings {
    let mut findings = Findings::default();
    let locals = match locals(servers).await {
        Ok(locals) => locals,
        Err(error) => {
            let (subject, role) = ("lockkit", Role::Lockkit);
            let backend = servers.backend();
            let what = What { workload: NAME, backend, subject, role, case: "" };
            findings.note(&what, Err(error));
            return findings;
        }
    };
    let mut rng = Rng::with_seed(extent.seed);
    for (tasks, case) in CASES {
        let mut found: Vec<(usize, Result<Vec<Round>>)> =
            (0..locals.len()).map(|at| (at, Ok(Vec::new()))).collect();
        for _ in 0..extent.rounds {
            rng.shuffle(&mut found);
            for (at, found) in &mut found {
                let Ok(rounds) = found else { continue };
                match timeout(extent.limit, round(&locals[*at], tasks, extent.slice)).await {
                    Ok(Ok(figures)) => rounds.push(Round { figures, ..Round::default() }),
                    Ok(Err(error)) => *found = Err(error),
                    Err(_) => *found = Err(format!("not done within {:?}", extent.limit).into()),
                }
            }
        }
        found.sort_by_key(|(at, _)| *at);
        for (at, found) in found {
            let (subject, role) = locals[at].subject();
            let backend = servers.backend();
            findings.note(&What { workload: NAME, backend, subject, role, case }, found);
        }
    }
    findings
}

/// Those that are compared: none where there is a server.
async fn locals(servers: &Servers) -> Result<Vec<Arc<dyn Local>>> {
    let ours = async || {
        let locker = lockkit::connect(&servers.url()).await?;
        Result::Ok(Arc::new(Ours(locker)) as Arc<dyn Local>)
    };
    Ok(match (servers.backend(), servers.folder()) {
        (Backend::Memory, _) => vec![ours().await?, Arc::new(InProcess::default())],
        (Backend::File, Some(folder)) => {
            let file = TempDir::with_prefix_in("flock-", folder)?;
            vec![ours().await?, Arc::new(Flock(file)), Arc::new(InProcess::default())]
        }
        _ => Vec::new(),
    })
}

async fn round(local: &Arc<dyn Local>, tasks: usize, slice: Duration) -> Result<Vec<Figure>> {
    let ready = Arc::new(Barrier::new(tasks));
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (local, ready) = (local.clone(), ready.clone());
        running.spawn(async move {
            ready.wait().await;
            local.pairs(begun + slice).await
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = running.join_next().await {
        times.extend(ended??);
    }
    let took = begun.elapsed().as_secs_f64();
    times.sort_unstable();
    let pairs = times.len() as f64;
    let at = |share: f64| {
        let time = times.get((pairs * share) as usize).ok_or("it was never taken")?;
        Result::Ok(time.as_secs_f64())
    };
    Ok(vec![
        figure("pairs", Unit::PerSecond, pairs / took),
        figure("p50", Unit::Time, at(0.5)?),
        figure("p99", Unit::Time, at(0.99)?),
    ])
}

/// lockkit.
struct Ours(Locker);

/// The runtime's mutex.
#[derive(Default)]
struct InProcess(Mutex<()>);

/// The kernel's lock on a file that is open: for each who wants it one of its own, opened once.
struct Flock(TempDir);

#[async_trait]
impl Local for Ours {
    fn subject(&self) -> (&'static str, Role) {
        ("lockkit", Role::Lockkit)
    }

    async fn pairs(self: Arc<Self>, until: Instant) -> Result<Vec<Duration>> {
        let (lock, mut times) = (self.0.lock(NAME)?, Vec::new());
        loop {
            let begun = Instant::now();
            if begun >= until {
                return Ok(times);
            }
            lock.acquire().await?.release().await?;
            times.push(begun.elapsed());
            yield_now().await;
        }
    }
}

#[async_trait]
impl Local for InProcess {
    fn subject(&self) -> (&'static str, Role) {
        ("tokio::sync::Mutex", Role::Peer)
    }

    async fn pairs(self: Arc<Self>, until: Instant) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        loop {
            let begun = Instant::now();
            if begun >= until {
                return Ok(times);
            }
            drop(self.0.lock().await);
            times.push(begun.elapsed());
            yield_now().await;
        }
    }
}

#[async_trait]
impl Local for Flock {
    fn subject(&self) -> (&'static str, Role) {
        ("flock", Role::Peer)
    }

    async fn pairs(self: Arc<Self>, until: Instant) -> Result<Vec<Duration>> {
        spawn_blocking(move || {
            let file = File::create(self.0.path().join(NAME))?;
            let mut times = Vec::new();
            loop {
                let begun = Instant::now();
                if begun >= until {
                    return Ok(times);
                }
                flock(&file, FlockOperation::LockExclusive)?;
                flock(&file, FlockOperation::Unlock)?;
                times.push(begun.elapsed());
                std::thread::yield_now();
            }
        })
        .await?
    }
}
