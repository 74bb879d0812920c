//! A run over lockkit, the floor, and other libraries that work, err and hang.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lockkit_compare::run::{Absence, Entry, Placement, Role, Run};
use lockkit_compare::runner::{Plan, run};
use lockkit_compare::servers::{Backend, Servers};
use lockkit_compare::subject::{Agents, Subject};
use lockkit_compare::{Scale, WORKLOADS};
use lockkit_testkit::{REDIS, trial};
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkit-compare");
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/peer.sh");

fn main() -> ExitCode {
    lockkit_testkit::run(vec![
        trial(
            "without_servers_lockkit_and_others_are_measured",
            || Ok(()),
            |()| in_any_weather(&[Backend::Memory, Backend::File]),
        ),
        trial(
            "on_redis_lockkit_the_floor_and_others_are_measured",
            || REDIS.url(),
            |_| in_any_weather(&[Backend::Redis]),
        ),
        trial("without_servers_who_hangs_is_given_up", || Ok(()), |()| given_up(Backend::Memory)),
        trial("on_redis_who_hangs_is_given_up", || REDIS.url(), |_| given_up(Backend::Redis)),
        trial("the_seed_decides_the_order", || Ok(()), |()| in_the_order_of_the_seed()),
        trial("who_compiles_as_it_runs_is_warm_when_others_begin", || Ok(()), |()| warm()),
    ])
}

fn plan(backends: &[Backend], seed: u64) -> Plan {
    let scale = Scale {
        slice: Duration::from_millis(20),
        hand_overs: 1,
        clients: vec![(2, 1)],
        // Ten agents start at once, which is not to cost anybody its lock.
        lease: Duration::from_secs(3),
        limit: Duration::from_secs(15),
    };
    Plan { backends: backends.into(), scale, rounds: 2, seed }
}

fn peer(kind: &str, name: &str, folder: &Path) -> Subject {
    let agent = ["sh", PEER, kind, folder.to_str().unwrap(), name];
    let agent = agent.into_iter().map(Into::into).collect();
    Subject {
        name: name.into(),
        role: Role::Peer,
        agent,
        urls: vec!["none".into()],
        compiles_as_it_runs: false,
    }
}

async fn in_any_weather(backends: &'static [Backend]) {
    let folder = TempDir::new().unwrap();
    let agents = Agents { own: PROGRAM.into(), peers: folder.path().join("none") };
    let subjects = |servers: &Servers| {
        let mut subjects = agents.subjects(servers);
        // Those that are there are no part of this.
        subjects.retain(|subject| subject.role != Role::Peer);
        if servers.backend() == Backend::File {
            return subjects;
        }
        subjects.extend(["works", "errs", "once"].map(|kind| peer(kind, kind, folder.path())));
        let agent = vec![folder.path().join("missing").into()];
        subjects.push(Subject { name: "missing".into(), agent, ..peer("", "", folder.path()) });
        subjects
    };
    let found = run(&plan(backends, 7), subjects, |_| ()).await.unwrap();
    for &backend in backends {
        check(&found, backend);
    }
    assert!((0.0..=1.0).contains(&found.setup.noise), "{}", found.setup.noise);
    assert!(found.setup.versions.contains(&("works".into(), "1.2.3".into())));
    nothing_is_left(folder.path()).await;
}

fn check(found: &Run, backend: Backend) {
    let name = backend.names().0;
    let entries_of = |subject: &str, workload: &str| entries_of(found, &name, subject, workload);
    let reasons_of =
        |subject: &str, workload: Option<&str>| reasons_of(found, &name, subject, workload);
    let between = found.entries.iter().filter(|entry| {
        entry.backend == name && entry.workload == "hand-over" && entry.case == "two processes"
    });
    let between: Vec<&Entry> = between.collect();
    assert_eq!(between.is_empty(), backend != Backend::File, "{between:?}");
    for entry in between {
        assert_eq!((&*entry.subject, entry.rounds.len()), ("lockkit", 2));
        let told = &entry.rounds[0].figures[0];
        assert!(told.name == "p50" && told.value > 0.0 && told.value < 3.0, "{told:?}");
    }
    let subjects = if backend == Backend::File { 1 } else { 2 };
    let is_shared = backend != Backend::Memory;
    for workload in WORKLOADS {
        let is_measured = backend != Backend::Memory || workload != "recovery";
        for subject in ["lockkit", "works"].into_iter().take(subjects) {
            let entries = entries_of(subject, workload);
            match is_measured {
                true => assert!(!entries.is_empty(), "{workload} of {subject} on {name}"),
                false => assert_eq!(reasons_of(subject, Some(workload)).len(), 1),
            }
            for entry in entries {
                assert_eq!(entry.rounds.len(), 2, "{entry:?}");
                let figures = &entry.rounds[0].figures;
                assert!(figures.iter().all(|figure| figure.value >= 0.0), "{entry:?}");
            }
        }
        if backend == Backend::File {
            continue;
        }
        assert!(entries_of("errs", workload).is_empty(), "{workload}");
        let reasons = reasons_of("errs", Some(workload));
        let says_so = |reason: &&str| !is_measured || reason.contains("the library says no");
        assert!(!reasons.is_empty() && reasons.iter().all(says_so), "{workload}: {reasons:?}");
    }
    if backend == Backend::File {
        return;
    }
    // Where there is no other, nothing is left out without a word.
    for workload in WORKLOADS {
        assert!(entries_of("once", workload).is_empty(), "{workload}");
        let reasons = reasons_of("once", Some(workload));
        let said = match workload {
            "uncontended" => "the library says no",
            "recovery" if !is_shared => "end with the process",
            _ => "it starts once only",
        };
        assert!(reasons.iter().any(|reason| reason.contains(said)), "{workload}: {reasons:?}");
    }
    assert!(matches!(reasons_of("missing", None)[..], [reason] if reason.contains("be started")));

    // What an agent tells, but for what makes its connections.
    let told = &entries_of("works", "uncontended")[0].rounds[0].figures[0];
    assert_eq!(told.name, "p50");
    assert!((told.value - 3.5e-6).abs() < 1e-8, "{told:?}");
    let told = &entries_of("works", "contended")[0].rounds[0].figures;
    assert_eq!((&*told[0].name, told[0].value), ("grants", 8.0));

    if backend == Backend::Redis {
        for subject in ["lockkit, fair", "floor"] {
            assert!(!entries_of(subject, "uncontended").is_empty(), "{subject}");
        }
        let mut contended = entries_of("lockkit", "contended");
        contended.retain(|entry| entry.case.ends_with("empty"));
        assert!(!contended.is_empty());
        for entry in contended {
            let figures = &entry.rounds[0].figures;
            let requests = figures.iter().find(|figure| figure.name == "requests a grant");
            assert!(requests.unwrap().value >= 2.0, "{entry:?}");
        }
    }
}

fn entries_of<'a>(found: &'a Run, backend: &str, subject: &str, workload: &str) -> Vec<&'a Entry> {
    let is_it = |entry: &&Entry| {
        (&*entry.backend, &*entry.subject, &*entry.workload) == (backend, subject, workload)
            && entry.placement == Placement::Unpinned
    };
    found.entries.iter().filter(is_it).collect()
}

fn reasons_of<'a>(
    found: &'a Run,
    backend: &str,
    subject: &str,
    workload: Option<&str>,
) -> Vec<&'a str> {
    let is_it = |absence: &&Absence| {
        (&*absence.backend, &*absence.subject, absence.workload.as_deref())
            == (backend, subject, workload)
    };
    found.absences.iter().filter(is_it).map(|absence| &*absence.reason).collect()
}

/// Apart from the others, for whom such a limit would be too short.
async fn given_up(backend: Backend) {
    let folder = TempDir::new().unwrap();
    let kinds = ["works", "hangs"];
    let subjects = |_: &Servers| kinds.map(|kind| peer(kind, kind, folder.path())).into();
    let mut plan = plan(&[backend], 7);
    plan.scale.limit = Duration::from_secs(4);
    let (found, name) = (run(&plan, subjects, |_| ()).await.unwrap(), backend.names().0);
    assert!(entries_of(&found, &name, "hangs", "uncontended").is_empty());
    let reasons = reasons_of(&found, &name, "hangs", Some("uncontended"));
    assert!(matches!(reasons[..], [reason] if reason.contains("no answer within")), "{reasons:?}");
    // Another agent does the rest.
    assert!(!entries_of(&found, &name, "hangs", "contended").is_empty());
    assert!(!entries_of(&found, &name, "works", "uncontended").is_empty());
    nothing_is_left(folder.path()).await;
}

/// Neither agents nor what they have started. That takes as long as the system takes to end them.
async fn nothing_is_left(folder: &Path) {
    let notes = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let notes = notes.filter(|path| path.to_str().unwrap().contains("process-"));
    let ids: Vec<i32> =
        notes.map(|path| fs::read_to_string(path).unwrap().trim().parse().unwrap()).collect();
    assert!(!ids.is_empty());
    for id in ids {
        while test_kill_process(Pid::from_raw(id).unwrap()).is_ok() {
            tokio::task::yield_now().await;
        }
    }
}

async fn in_the_order_of_the_seed() {
    let asked = async |seed| {
        let folder = TempDir::new().unwrap();
        let names = ["a", "b", "c", "d", "e"];
        let subjects = |_: &Servers| names.map(|name| peer("works", name, folder.path())).into();
        let found = run(&plan(&[Backend::Memory], seed), subjects, |_| ()).await.unwrap();
        assert_eq!((found.setup.seed, found.setup.rounds), (seed, 2));
        // In the order of reports all the same.
        let first = found.entries.iter().map(|entry| &*entry.subject).step_by(2).take(5);
        let is_pinned = found.entries.iter().any(|entry| entry.placement == Placement::Pinned);
        if is_pinned {
            assert_eq!(first.collect::<Vec<_>>(), names);
        }
        fs::read_to_string(folder.path().join("asked")).unwrap()
    };
    let first = asked(7).await;
    assert_eq!(asked(7).await, first);
    assert_ne!(asked(8).await, first);
}

async fn warm() {
    let folder = TempDir::new().unwrap();
    let subjects = |_: &Servers| {
        let cold = peer("works", "cold", folder.path());
        let warm = peer("works", "warm", folder.path());
        vec![cold, Subject { compiles_as_it_runs: true, ..warm }]
    };
    let mut plan = plan(&[Backend::Memory], 7);
    // Eight of these are as long as anybody is warmed up for.
    plan.scale.slice = Duration::from_millis(250);
    run(&plan, subjects, |_| ()).await.unwrap();
    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    let before: Vec<_> = asked.lines().take_while(|line| line.starts_with("warm ")).collect();
    // By what is measured, and for longer than a turn.
    assert!(before.len() > 2, "{asked}");
    assert!(before.contains(&"warm uncontended") && before.contains(&"warm handover"), "{asked}");
}
