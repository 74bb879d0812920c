//! What is not told by one latency: many holds, many waiters, work that may need no lock, and work
//! that needs none across processes.

mod client;
mod granularity;
mod many_names;
mod stock;
mod waiters;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkit_bench::{Result, Unit};

pub use self::client::{Client, client};
use crate::agent::reason;
use crate::run::{Absence, Entry, Figure, Placement, Role, Round};
use crate::servers::{Backend, Servers};

/// How much is studied.
#[derive(Clone, Debug)]
pub struct Extent {
    /// How many locks a process holds, and with which lease, one case after the other.
    pub names: Vec<(usize, Duration)>,
    /// How many of a process wait for one lock, and with which lease, one case after the other.
    pub waiters: Vec<(usize, Duration)>,
    /// How many sell at the same time.
    pub sellers: usize,
    /// How many pieces they have.
    pub pieces: u64,
    /// How long each way to do the same is measured in a round.
    pub slice: Duration,
    /// How often each way is measured, in turn.
    pub rounds: usize,
    /// How long a process may take for a stage, and a round of selling.
    pub limit: Duration,
    /// What decides in which order they take turns.
    pub seed: u64,
}

/// What was found out.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What was measured.
    pub entries: Vec<Entry>,
    /// What could not be.
    pub absences: Vec<Absence>,
}

impl Extent {
    /// A thousand holds and waiters, then ten thousand.
    pub fn full() -> Self {
        Self {
            names: vec![(1_000, Duration::from_secs(3)), (10_000, Duration::from_secs(6))],
            waiters: vec![(1_000, Duration::from_secs(9)), (10_000, Duration::from_secs(15))],
            sellers: 8,
            pieces: 500,
            slice: Duration::from_millis(400),
            rounds: 3,
            limit: Duration::from_secs(15),
            seed: 0,
        }
    }

    /// The smaller numbers, once.
    pub fn quick() -> Self {
        let full = Self::full().thousands();
        Self { pieces: 200, slice: Duration::from_millis(200), rounds: 1, ..full }
    }

    /// The smaller numbers of holds and waiters.
    fn thousands(&self) -> Self {
        let mut fewer = self.clone();
        fewer.names.truncate(1);
        fewer.waiters.truncate(1);
        fewer
    }

    /// What decides in which order they take turns.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Studies lockkit on servers of each backend that nobody has used before, one backend after the
/// other, and tells what it does. `program` is this one, which is started again as a
/// [client](Client).
pub async fn run(
    backends: &[Backend],
    extent: &Extent,
    program: &Path,
    progress: impl Fn(&str),
) -> Findings {
    let mut findings = Findings::default();
    for &backend in backends {
        let (name, _) = backend.names();
        let tell = |what: &str, begun: Instant| {
            progress(&format!("{name}: {what} studied in {:.0?}", begun.elapsed()));
        };
        match Servers::start(backend) {
            Ok(servers) => findings.add(Box::pin(all(&servers, extent, program, tell)).await),
            Err(error) => {
                let (subject, role) = ("lockkit", Role::Lockkit);
                for workload in [many_names::NAME, waiters::NAME, stock::NAME] {
                    let what = What { workload, backend, subject, role, case: "" };
                    findings.note(&what, Err(reason(&*error).into()));
                }
            }
        }
    }
    findings
}

/// Studies lockkit on these servers, by all that can be studied there, and tells what was and when
/// that was begun.
pub async fn all(
    servers: &Servers,
    extent: &Extent,
    program: &Path,
    progress: impl Fn(&str, Instant),
) -> Findings {
    let mut begun = Instant::now();
    let mut tell = |what: &str| progress(what, std::mem::replace(&mut begun, Instant::now()));
    // A server may still have to do with the crowds when those who made them have gone: they are
    // studied last, and come first in reports.
    let local = Box::pin(granularity::study(servers, extent)).await;
    tell(granularity::NAME);
    let stock = Box::pin(stock::study(servers, extent)).await;
    tell(stock::NAME);
    let extent = match servers.backend() {
        Backend::Redlock(4..) | Backend::ZooKeeper(2..) | Backend::Etcd(2..) => extent.thousands(),
        _ => extent.clone(),
    };
    let mut findings = Findings::default();
    for subject in Subject::all(servers.backend()) {
        // Enough to see how the kinds differ.
        let extent = match subject {
            Subject::Usual => extent.clone(),
            Subject::Fair | Subject::Session => extent.thousands(),
        };
        let site = Site { servers, subject, program: program.to_owned() };
        findings.add(Box::pin(many_names::study(&site, &extent)).await);
        tell(&format!("{}, {}", subject.name(), many_names::NAME));
        findings.add(Box::pin(waiters::study(&site, &extent)).await);
        tell(&format!("{}, {}", subject.name(), waiters::NAME));
    }
    findings.add(stock);
    findings.add(local);
    findings
}

/// What is studied, where, and with which program.
#[derive(Debug)]
struct Site<'a> {
    servers: &'a Servers,
    subject: Subject,
    program: PathBuf,
}

/// The ways to use a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Usual,
    Fair,
    Session,
}

impl Subject {
    fn all(backend: Backend) -> Vec<Self> {
        match backend {
            Backend::Postgres | Backend::Mariadb => vec![Self::Usual, Self::Fair, Self::Session],
            Backend::Sqlite | Backend::Redis => vec![Self::Usual, Self::Fair],
            _ => vec![Self::Usual],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Usual => "lockkit",
            Self::Fair => "lockkit, fair",
            Self::Session => "lockkit, session",
        }
    }

    /// The URL for it, where that of the backend is this.
    fn url(self, url: &str) -> String {
        match self {
            Self::Usual | Self::Fair => url.to_owned(),
            Self::Session => format!("{url}?hold=session"),
        }
    }
}

impl Findings {
    fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.absences.extend(other.absences);
    }

    /// Notes a case, or why there is none.
    fn note(&mut self, what: &What<'_>, found: Result<Vec<Round>>) {
        let What { workload, backend, subject, role, case } = *what;
        let (backend, _) = backend.names();
        let (workload, subject, case) = (workload.into(), subject.into(), case.into());
        match found {
            Ok(rounds) => {
                let placement = Placement::Unpinned;
                let entry = Entry { workload, backend, subject, role, placement, case, rounds };
                self.entries.push(entry);
            }
            Err(error) => {
                let reason = match &*case {
                    "" => reason(&*error),
                    case => format!("{case}: {}", reason(&*error)),
                };
                let workload = Some(workload);
                self.absences.push(Absence { workload, backend, subject, role, reason });
            }
        }
    }
}

impl Site<'_> {
    /// Measures one number after the other, until one is too many for the time that there is.
    async fn each(
        &self,
        cases: Vec<(String, Client)>,
        workload: &str,
        extent: &Extent,
        measure: impl AsyncFn(&Self, &Client, &Extent) -> Result<Measured>,
    ) -> Findings {
        let mut findings = Findings::default();
        let mut before = Before::Nothing;
        for (case, client) in cases {
            let found = match before {
                Before::Failed => Err("fewer could not be measured either".into()),
                Before::Took(fewer, took)
                    if expected(client.number, fewer, took) > extent.limit =>
                {
                    let expected = expected(client.number, fewer, took);
                    Err(format!("would take {expected:.0?}, as {fewer} took {took:.1?}").into())
                }
                Before::Nothing | Before::Took(..) => measure(self, &client, extent).await,
            };
            before = match &found {
                Ok(Measured { took, .. }) => Before::Took(client.number, *took),
                Err(_) => Before::Failed,
            };
            let found =
                found.map(|measured| vec![Round { figures: measured.figures, ..Round::default() }]);
            let (backend, subject) = (self.servers.backend(), self.subject.name());
            let role = Role::Lockkit;
            findings.note(&What { workload, backend, subject, role, case: &case }, found);
        }
        findings
    }
}

/// What came of the case before.
enum Before {
    Nothing,
    Failed,
    /// So many took so long.
    Took(usize, Duration),
}

/// A case, and how long the longest stage took that is longer for more.
struct Measured {
    figures: Vec<Figure>,
    took: Duration,
}

fn expected(number: usize, fewer: usize, took: Duration) -> Duration {
    took.mul_f64(number as f64 / fewer as f64)
}

/// Which case of which study.
#[derive(Clone, Copy, Debug)]
struct What<'a> {
    workload: &'a str,
    backend: Backend,
    subject: &'a str,
    role: Role,
    case: &'a str,
}

fn figure(name: &str, unit: Unit, value: f64) -> Figure {
    Figure { name: name.into(), unit, value }
}
