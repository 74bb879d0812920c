//! What `--json` writes: see the schemas in `docs/`. What stands here is promised: fields are
//! added, and none is changed.

use std::time::Duration;

use lockkit::{Diagnosis, FencingToken, Label, LockStatus, Locker, Result};
#[cfg(feature = "bench")]
use lockkit_bench::{Outcome, Row, SubjectOutcome, Summary, Unit};
use serde::Serialize;

#[cfg(feature = "bench")]
use crate::bench::Setting;

/// The answer of `lockkit status --json`.
pub(crate) fn status(locker: &Locker, namespace: &str, locks: &[LockStatus]) -> Result<String> {
    let locks = locks.iter().map(Lock::new).collect();
    text(&Status { schema: 1, driver: locker.driver().id(), namespace, locks })
}

/// The answer of `lockkit doctor --json`.
pub(crate) fn diagnosis(driver: Option<&str>, findings: &[Diagnosis]) -> Result<String> {
    let findings = findings.iter().map(Finding::new).collect();
    text(&Doctor { schema: 1, driver, findings })
}

/// The answer of `lockkit bench --json`.
#[cfg(feature = "bench")]
pub(crate) fn outcomes(setting: &Setting, outcomes: &[Outcome]) -> Result<String> {
    let &Setting { seed, rounds, cpus, load } = setting;
    let workloads = outcomes.iter().map(Workload::new).collect();
    text(&Bench { schema: 1, seed, rounds, cpus, load, workloads })
}

fn text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| lockkit::Error::config("JSON", error.to_string()))
}

#[derive(Serialize)]
struct Status<'a> {
    schema: u32,
    driver: &'a str,
    namespace: &'a str,
    locks: Vec<Lock<'a>>,
}

#[derive(Serialize)]
struct Lock<'a> {
    name: &'a str,
    holder: Option<Holder<'a>>,
    waiters: Vec<Waiter<'a>>,
    listeners: Option<u64>,
}

#[derive(Serialize)]
struct Holder<'a> {
    owner: String,
    label: Option<&'a str>,
    /// As text, since numbers of that size are not exact everywhere.
    token: Option<String>,
    held_for_ms: Option<u64>,
    free_in_ms: Option<u64>,
}

#[derive(Serialize)]
struct Waiter<'a> {
    owner: String,
    label: Option<&'a str>,
    waiting_for_ms: Option<u64>,
}

#[derive(Serialize)]
struct Doctor<'a> {
    schema: u32,
    driver: Option<&'a str>,
    findings: Vec<Finding<'a>>,
}

#[derive(Serialize)]
struct Finding<'a> {
    grade: String,
    topic: &'a str,
    finding: &'a str,
    advice: Option<&'a str>,
}

#[cfg(feature = "bench")]
#[derive(Serialize)]
struct Bench<'a> {
    schema: u32,
    seed: u64,
    rounds: usize,
    cpus: Option<usize>,
    load: Option<f64>,
    workloads: Vec<Workload<'a>>,
}

#[cfg(feature = "bench")]
#[derive(Serialize)]
struct Workload<'a> {
    name: &'a str,
    about: &'a str,
    subjects: Vec<Subject<'a>>,
}

#[cfg(feature = "bench")]
#[derive(Serialize)]
struct Subject<'a> {
    label: &'a str,
    not_measured: Option<&'a str>,
    cases: Vec<Case<'a>>,
}

#[cfg(feature = "bench")]
#[derive(Serialize)]
struct Case<'a> {
    case: &'a str,
    figures: Vec<Figure<'a>>,
}

#[cfg(feature = "bench")]
#[derive(Serialize)]
struct Figure<'a> {
    name: &'a str,
    unit: Unit,
    median: f64,
    least: f64,
    most: f64,
}

impl<'a> Lock<'a> {
    fn new(status: &'a LockStatus) -> Self {
        Self {
            name: status.name().as_str(),
            holder: status.holder().map(|holder| Holder {
                owner: holder.owner().to_string(),
                label: holder.label().map(Label::as_str),
                token: holder.fencing_token().map(FencingToken::get).map(|token| token.to_string()),
                held_for_ms: millis(holder.held_for()),
                free_in_ms: millis(holder.remaining()),
            }),
            waiters: status.waiters().iter().map(Waiter::new).collect(),
            listeners: status.listeners(),
        }
    }
}

impl<'a> Waiter<'a> {
    fn new(waiter: &'a lockkit::Waiter) -> Self {
        Self {
            owner: waiter.owner().to_string(),
            label: waiter.label().map(Label::as_str),
            waiting_for_ms: millis(waiter.waiting_for()),
        }
    }
}

impl<'a> Finding<'a> {
    fn new(diagnosis: &'a Diagnosis) -> Self {
        Self {
            grade: diagnosis.grade().to_string(),
            topic: diagnosis.topic(),
            finding: diagnosis.finding(),
            advice: diagnosis.advice(),
        }
    }
}

#[cfg(feature = "bench")]
impl<'a> Workload<'a> {
    fn new(outcome: &'a Outcome) -> Self {
        let subjects = outcome.subjects.iter().map(Subject::new).collect();
        Self { name: outcome.workload, about: outcome.about, subjects }
    }
}

#[cfg(feature = "bench")]
impl<'a> Subject<'a> {
    fn new(SubjectOutcome { label, rows, .. }: &'a SubjectOutcome) -> Self {
        let not_measured = rows.as_ref().err().map(String::as_str);
        Self { label, not_measured, cases: rows.iter().flatten().map(Case::new).collect() }
    }
}

#[cfg(feature = "bench")]
impl<'a> Case<'a> {
    fn new(row: &'a Row) -> Self {
        let figure = |&Summary { name, unit, median, least, most, .. }: &'a Summary| Figure {
            name,
            unit,
            median,
            least,
            most,
        };
        Self { case: &row.case, figures: row.summaries.iter().map(figure).collect() }
    }
}

fn millis(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
