//! That the checks can fail: every planted defect is caught, and every check catches one.
//!
//! The matrix is `DEFECTS.md`; `LOCKKIT_BLESS=1` writes it anew.

mod broken;
mod catalogue;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::future::ready;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_conformance::{Outcome, Suite};
use lockkit_core::memory::CAPABILITIES;
use lockkit_core::{Capabilities, Fairness, Liveness};

use crate::broken::Server;
use crate::catalogue::Defect;

#[test]
fn the_sound_driver_fails_no_check() {
    let suite = suite(None);
    for check in Suite::checks() {
        assert_eq!(suite.run(check), Outcome::Passed, "{}", check.name());
    }
}

/// Defects are planted in them as well.
#[test]
fn sound_drivers_of_other_kinds_fail_no_check() {
    let kinds = Defect::ALL.iter().map(|defect| capabilities_with(*defect));
    let mut others: Vec<_> = kinds.filter(|kind| *kind != CAPABILITIES).collect();
    others.dedup();
    assert!(others.len() > 2, "{others:?}");
    for kind in others {
        let suite = suite_of(None, kind);
        for check in Suite::checks() {
            let outcome = suite.run(check);
            let is_failed = matches!(outcome, Outcome::Failed(_));
            assert!(!is_failed, "{} of {kind:?}: {outcome:?}", check.name());
        }
    }
}

#[test]
fn every_defect_is_caught_and_every_check_catches_one() {
    let caught = run_all();
    let uncaught: Vec<_> =
        Defect::ALL.iter().zip(&caught).filter(|(_, caught)| caught.is_empty()).collect();
    assert!(uncaught.is_empty(), "caught by no check: {uncaught:?}");
    let catching: HashSet<_> = caught.iter().flat_map(HashMap::keys).copied().collect();
    let names = Suite::checks().iter().map(|check| check.name());
    let blind: Vec<_> = names.filter(|name| !catching.contains(name)).collect();
    assert!(blind.is_empty(), "catching no defect: {blind:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("DEFECTS.md");
    let matrix = matrix(&caught);
    if std::env::var_os("LOCKKIT_BLESS").is_some() {
        std::fs::write(path, matrix).unwrap();
    } else {
        let committed = std::fs::read_to_string(path).unwrap();
        let differing: Vec<_> = (matrix.lines().zip(committed.lines()))
            .filter(|(found, committed)| found != committed)
            .map(|(found, committed)| {
                let reasons = reasons_beyond(committed, found, &caught);
                format!("\n- {committed}\n+ {found}\n{}", reasons.join("\n"))
            })
            .collect();
        assert!(
            matrix == committed,
            "DEFECTS.md is out of date, LOCKKIT_BLESS=1 writes it anew:{}",
            differing.concat()
        );
    }
}

/// Why the check of a row failed where it did not on record.
fn reasons_beyond(
    committed: &str,
    found: &str,
    caught: &[HashMap<&'static str, String>],
) -> Vec<String> {
    let (Some((check, found)), Some((_, committed))) =
        (found.split_once(' '), committed.split_once(' '))
    else {
        return Vec::new();
    };
    let cells = found.trim_start().bytes().zip(committed.trim_start().bytes());
    let differing = cells.zip(Defect::ALL.iter().zip(caught)).filter(|(cell, _)| cell.0 != cell.1);
    differing
        .filter_map(|(_, (defect, caught))| Some(format!("{defect:?}: {}", caught.get(check)?)))
        .collect()
}

/// Nothing shorter than the shortest lease can be asked for, so a check has to begin with a longer.
#[test]
fn a_shortened_lease_is_noticed_where_the_usual_one_is_the_shortest() {
    let shortest = CAPABILITIES.ttl(Duration::from_secs(30), Capabilities::MAX_TTL);
    let name = "driver::no_request_shortens_a_lease";
    let check = Suite::checks().iter().find(|check| check.name() == name);
    let check = check.expect("there is such a check");
    assert_eq!(suite_of(None, shortest).run(check), Outcome::Passed);
    let outcome = suite_of(Some(Defect::ShortensLeases), shortest).run(check);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

/// For each defect, the checks that fail, and why.
fn run_all() -> Vec<HashMap<&'static str, String>> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut caught = vec![HashMap::new(); Defect::ALL.len()];
    std::thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            while let Some(defect) = Defect::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                let suite = suite(Some(*defect));
                let mut failed = HashMap::new();
                for check in Suite::checks() {
                    if let Outcome::Failed(reason) = suite.run(check) {
                        failed.insert(check.name(), reason);
                    }
                }
                done.push((*defect as usize, failed));
            }
            done
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            for (defect, names) in worker.join().expect("a failing check is no panic") {
                caught[defect] = names;
            }
        }
    });
    caught
}

fn suite(defect: Option<Defect>) -> Suite {
    suite_of(defect, defect.map_or(CAPABILITIES, capabilities_with))
}

/// What the driver promises in which the defect is planted.
fn capabilities_with(defect: Defect) -> Capabilities {
    let mut capabilities = CAPABILITIES;
    match defect {
        Defect::SessionsVouchFromTheRequest
        | Defect::SessionsRenewFromTheRequest
        | Defect::SessionsPushFromTheRequest
        | Defect::SessionsVouchWhileAlive
        | Defect::SessionsVouchForTheClaim
        | Defect::SessionsVouchAhead => capabilities.liveness = Liveness::Session,
        Defect::ProcessesVouchFromTheRequest | Defect::DescriptorsKeepNothing => {
            capabilities.liveness = Liveness::Process;
        }
        Defect::UnorderedPushesAreFresh | Defect::UnorderedOldPushesStay => {
            capabilities.fairness = Fairness::Unordered;
        }
        _ => (),
    }
    capabilities
}

fn suite_of(defect: Option<Defect>, capabilities: Capabilities) -> Suite {
    let [server, revoked, severed, silenced, spoken, restarted] = {
        let server = Server::new(defect, capabilities);
        [(); 6].map(|()| server.clone())
    };
    Suite::new("broken", capabilities)
        .connect(move || {
            // On the thread of the check: the engine's jitter is the same in each run.
            fastrand::seed(7);
            ready(Ok(server.connect()))
        })
        .revoke(move |name| {
            revoked.revoke(&name);
            ready(Ok(()))
        })
        .sever(move || {
            severed.sever();
            ready(Ok(()))
        })
        .silence(
            move || {
                silenced.fall_silent();
                ready(Ok(()))
            },
            move || {
                spoken.speak();
                ready(Ok(()))
            },
        )
        .restart(move || {
            restarted.restart();
            ready(Ok(()))
        })
        .virtual_time()
}

fn matrix(caught: &[HashMap<&str, String>]) -> String {
    let mut text = String::from(
        "# Planted defects\n\n\
         Generated by `LOCKKIT_BLESS=1 cargo test -p lockkit-conformance --test defects`.\n\n\
         Each defect is planted in the memory driver, and all checks are run on it; where it says \
         so, in one that promises sessions, processes or no order instead. The driver without a \
         defect fails none.\n\n\
         | | defect | what it does | where a real driver did the like | failing checks |\n\
         | --: | --- | --- | --- | --: |\n",
    );
    for (number, (defect, caught)) in Defect::ALL.iter().zip(caught).enumerate() {
        let (what, seen, count) = (defect.what(), defect.seen(), caught.len());
        _ = writeln!(text, "| {} | {defect:?} | {what} | {seen} | {count} |", number + 1);
    }
    text += "\n## Defects by checks\n\n\
             A row is a check, a column a defect; `x` is a check that fails.\n\n```text\n";
    let width = Suite::checks().iter().map(|check| check.name().len()).max().unwrap_or(0);
    for digit in [100, 10, 1] {
        _ = write!(text, "{:width$} ", "");
        for number in 1..=caught.len() {
            _ = write!(text, "{}", number / digit % 10);
        }
        text.push('\n');
    }
    for check in Suite::checks() {
        _ = write!(text, "{:width$} ", check.name());
        for caught in caught {
            text.push(if caught.contains_key(check.name()) { 'x' } else { '.' });
        }
        text.push('\n');
    }
    text + "```\n"
}
