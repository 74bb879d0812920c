//! The studies, small, on what every machine has and on Redis: what they count is counted right.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lockkit_compare::run::{Entry, Role};
use lockkit_compare::servers::{Backend, Servers};
use lockkit_compare::studies::{self, Extent, Findings};
use lockkit_testkit::{Unavailable, trial};

fn main() -> ExitCode {
    lockkit_testkit::run(vec![
        trial("memory_is_studied", || start(Backend::Memory), of_memory),
        trial("files_are_studied", || start(Backend::File), of_files),
        trial("sqlite_is_studied", || start(Backend::Sqlite), of_sqlite),
        trial("redis_is_studied", || start(Backend::Redis), of_redis),
        trial("a_case_that_cannot_be_is_an_absence_with_the_reason", || Ok(()), of_no_client),
    ])
}

fn start(backend: Backend) -> Result<Servers, Unavailable> {
    Servers::start(backend).map_err(|error| *error.downcast::<Unavailable>().unwrap())
}

fn small() -> Extent {
    Extent {
        names: vec![(20, Duration::from_secs(4))],
        waiters: vec![(20, Duration::from_secs(4))],
        sellers: 4,
        pieces: 20,
        // In less, on a machine under load, no lock may be taken at all.
        slice: Duration::from_millis(250),
        rounds: 2,
        limit: Duration::from_secs(40),
        seed: 7,
    }
}

async fn studied(servers: &Servers, extent: &Extent) -> Findings {
    let program = Path::new(env!("CARGO_BIN_EXE_lockkit-compare"));
    let findings = studies::all(servers, extent, program, |_, _| ()).await;
    for entry in &findings.entries {
        assert_eq!(entry.backend, servers.backend().names().0);
        for figure in entry.rounds.iter().flat_map(|round| &round.figures) {
            assert!(figure.value.is_finite() && figure.value >= 0.0, "{figure:?} of {entry:?}");
        }
        match &*entry.workload {
            "many-names" => assert_eq!(least(entry, "holds lost"), 0.0),
            "waiters" => assert!(least(entry, "grants") > 0.0),
            "stock" => {
                assert_eq!(entry.rounds.len(), 2);
                assert_eq!(most(entry, "sold wrongly"), 0.0, "{entry:?}");
                assert!(least(entry, "tries a sale") >= 1.0, "{entry:?}");
                assert!(entry.role != Role::Lockkit || most(entry, "tries a sale") == 1.0);
            }
            "granularity" => assert!(least(entry, "pairs") > 0.0),
            other => panic!("no study is called `{other}`"),
        }
    }
    findings
}

async fn of_memory(servers: Servers) {
    let found = studied(&servers, &small()).await;
    assert_eq!(
        cases(&found),
        [
            "many-names, lockkit, 20 holds, leases of 4s",
            "waiters, lockkit, 20 waiters",
            "stock, lockkit, 4 sellers",
            "stock, no lock: one operation, 4 sellers",
            "stock, no lock: version and retry, 4 sellers",
            "granularity, lockkit, uncontended",
            "granularity, tokio::sync::Mutex, uncontended",
            "granularity, lockkit, 8 tasks",
            "granularity, tokio::sync::Mutex, 8 tasks",
        ]
    );
    assert!(found.absences.is_empty(), "{:?}", found.absences);
    // Renewed at a third of each lease, or a little before.
    let asks = least(&found.entries[0], "asks a hold and lease");
    assert!((1.9..=6.0).contains(&asks), "{asks} requests a hold and lease");
    // Each waiter lets go once.
    assert!(least(&found.entries[1], "asks a grant") >= 1.0);
}

async fn of_files(servers: Servers) {
    let found = studied(&servers, &small()).await;
    assert_eq!(
        cases(&found),
        [
            "many-names, lockkit, 20 holds, leases of 4s",
            "waiters, lockkit, 20 waiters",
            "stock, lockkit, 4 sellers",
            "granularity, lockkit, uncontended",
            "granularity, flock, uncontended",
            "granularity, tokio::sync::Mutex, uncontended",
            "granularity, lockkit, 8 tasks",
            "granularity, flock, 8 tasks",
            "granularity, tokio::sync::Mutex, 8 tasks",
        ]
    );
    let absent: Vec<_> = found.absences.iter().map(|absence| &*absence.subject).collect();
    assert_eq!(absent, ["no lock: one operation", "no lock: version and retry"]);
}

async fn of_sqlite(servers: Servers) {
    // Each renewal waits for the disk.
    let extent = Extent { names: vec![(20, Duration::from_secs(6))], ..small() };
    let found = studied(&servers, &extent).await;
    assert!(found.absences.is_empty(), "{:?}", found.absences);
    assert_eq!(found.entries.len(), 6, "{:?}", cases(&found));
}

async fn of_redis(servers: Servers) {
    let found = studied(&servers, &small()).await;
    assert_eq!(
        cases(&found),
        [
            "many-names, lockkit, 20 holds, leases of 4s",
            "waiters, lockkit, 20 waiters",
            "waiters, lockkit, fair, 20 waiters",
            "stock, lockkit, 4 sellers",
            "stock, lockkit, fair, 4 sellers",
            "stock, no lock: one operation, 4 sellers",
            "stock, no lock: version and retry, 4 sellers",
        ]
    );
    assert!(found.absences.is_empty(), "{:?}", found.absences);
    let [names, _, fair, ..] = &found.entries[..] else { unreachable!() };
    let (asks, requests) =
        (least(names, "asks a hold and lease"), least(names, "requests a hold and lease"));
    assert!((1.9..=6.0).contains(&requests), "{requests} requests a hold and lease");
    assert!((requests - asks).abs() <= 0.5, "{asks} asks, {requests} requests");
    assert!(least(names, "connections") >= 1.0);
    // A release and an ask each, or less.
    assert!(most(fair, "requests a grant") < 6.0, "{fair:?}");
}

async fn of_no_client((): ()) {
    let servers = Servers::start(Backend::Memory).unwrap();
    let extent =
        Extent { names: vec![(1, Duration::from_secs(1))], waiters: Vec::new(), ..small() };
    let program = Path::new("/nowhere/lockkit-compare");
    let found = studies::all(&servers, &extent, program, |_, _| ()).await;
    assert_eq!(found.absences.len(), 1, "{:?}", found.absences);
    let absence = &found.absences[0];
    assert_eq!(absence.workload.as_deref(), Some("many-names"));
    assert!(absence.reason.starts_with("1 holds, leases of 1s: "), "{absence:?}");
}

fn cases(found: &Findings) -> Vec<String> {
    let case = |entry: &Entry| format!("{}, {}, {}", entry.workload, entry.subject, entry.case);
    found.entries.iter().map(case).collect()
}

fn least(entry: &Entry, name: &str) -> f64 {
    values(entry, name).fold(f64::INFINITY, f64::min)
}

fn most(entry: &Entry, name: &str) -> f64 {
    values(entry, name).fold(f64::NEG_INFINITY, f64::max)
}

fn values<'a>(entry: &'a Entry, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of_round = move |round: &'a lockkit_compare::run::Round| {
        let figure = round.figures.iter().find(|figure| figure.name == name);
        figure.unwrap_or_else(|| panic!("no figure `{name}` in {entry:?}")).value
    };
    entry.rounds.iter().map(of_round)
}
