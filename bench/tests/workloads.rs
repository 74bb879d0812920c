//! Each workload over a backend that is there everywhere: what it measures is there and makes sense.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_bench::workloads::{self, Contended, HandOver, ManyNames, Uncontended, Waiters};
use lockkit_bench::{
    Figure, Outcome, Plan, Reading, Result, Row, Scale, Subject, Unit, Workload, report,
};

fn memory() -> Subject {
    Subject::new("memory", &format!("memory:bench-{}", fastrand::u64(..))).unwrap()
}

fn tiny() -> Scale {
    let scale = Scale::quick().slice(Duration::from_millis(30)).clients([3]).waiters(10);
    scale.names(10).lease(Duration::from_secs(2))
}

async fn measured(workload: &dyn Workload, subject: Subject) -> Vec<Row> {
    let plan = Plan::new(vec![subject], tiny()).rounds(3);
    plan.run(workload, |_| ()).await.subjects.remove(0).rows.unwrap()
}

/// One round, in the first slice in which each case has that figure. Too few times or grants do not
/// tell it, and a machine that stands still for a moment has too few of them in a short slice.
async fn telling(workload: &dyn Workload, figure: &str) -> Vec<Row> {
    for slice in [300, 2_000, 10_000].map(Duration::from_millis) {
        let scale = tiny().slice(slice).limit(Duration::from_secs(60));
        let plan = Plan::new(vec![memory()], scale).rounds(1);
        let rows = plan.run(workload, |_| ()).await.subjects.remove(0).rows.unwrap();
        let tells = |row: &Row| row.summaries.iter().any(|summary| summary.name == figure);
        if rows.iter().all(tells) {
            return rows;
        }
    }
    panic!("no {figure}, however long it is measured");
}

fn median(row: &Row, name: &str) -> f64 {
    row.summaries.iter().find(|summary| summary.name == name).unwrap().median
}

#[tokio::test]
async fn times_are_a_distribution() {
    let rows = telling(&Uncontended, "p99.9").await;
    let times = ["p50", "p99", "p99.9"].map(|name| median(&rows[0], name));
    assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
    // Of a few hand-overs the longest is no quantile.
    let rows = measured(&HandOver, memory()).await;
    let names: Vec<_> = rows[0].summaries.iter().map(|summary| summary.name).collect();
    assert_eq!(names, ["p50"]);
}

#[tokio::test]
async fn there_is_no_time_so_short_that_nothing_is_measured() {
    let scale = tiny().slice(Duration::from_nanos(1));
    for (workload, subject) in [(&Uncontended as &dyn Workload, memory()), (&HandOver, memory())] {
        let plan = Plan::new(vec![subject], scale.clone()).rounds(1);
        let rows = plan.run(workload, |_| ()).await.subjects.remove(0).rows.unwrap();
        assert!(median(&rows[0], "p50") > 0.0, "{rows:?}");
    }
}

#[tokio::test]
async fn who_waits_in_vain_has_waited_for_no_known_time() {
    // Nobody is granted anything by an end that is over.
    let plan = Plan::new(vec![memory()], tiny().slice(Duration::ZERO)).rounds(1);
    let rows = plan.run(&Contended, |_| ()).await.subjects.remove(0).rows.unwrap();
    let names: Vec<_> = rows[0].summaries.iter().map(|summary| summary.name).collect();
    assert_eq!(names, ["grants"]);
}

#[tokio::test]
async fn a_wait_that_does_not_end_counts_as_long_as_it_was() {
    let subject = memory();
    let client = subject.client().await.unwrap();
    let held = client.lock("contended").unwrap().acquire().await.unwrap();
    let rows = measured(&Contended, subject).await;
    for row in &rows {
        for name in ["p50", "longest"] {
            assert!(median(row, name) >= 0.03, "{name}: {row:?}");
        }
        assert_eq!(median(row, "grants"), 0.0);
    }
    held.release().await.unwrap();
}

#[tokio::test]
async fn contenders_get_grants_of_two_requests_or_more() {
    let rows = telling(&Contended, "Jain").await;
    let cases: Vec<_> = rows.iter().map(|row| &*row.case).collect();
    assert_eq!(cases, ["3 clients, empty", "3 clients, 1 ms"]);
    for row in &rows {
        assert!(median(row, "grants") > 0.0);
        assert!(median(row, "requests a grant") >= 1.99, "an ask and a release: {row:?}");
        assert!((1.0 / 3.0..=1.0).contains(&median(row, "Jain")), "{row:?}");
    }
    // A millisecond under the lock is a millisecond for all.
    assert!(median(&rows[1], "grants") < 1_000.0, "{:?}", rows[1]);
}

#[tokio::test]
async fn what_is_kept_is_renewed() {
    let plan = Plan::new(vec![memory()], tiny()).rounds(1);
    let rows = plan.run(&ManyNames, |_| ()).await.subjects.remove(0).rows.unwrap();
    // Once in a lease of two seconds at least, and twice where nothing comes late.
    assert!(median(&rows[0], "requests a hold") >= 0.5, "{rows:?}");
    assert!(median(&rows[0], "least left") <= 1.0, "{rows:?}");
}

#[tokio::test]
async fn every_waiter_has_its_turn() {
    let rows = measured(&Waiters, memory()).await;
    assert_eq!(rows[0].case, "10");
    assert!(median(&rows[0], "grants") > 0.0);
    let fair = measured(&Waiters, memory().fair()).await;
    assert!(median(&fair[0], "grants") > 0.0);
}

/// Notes who was measured in which order, and fails where it is told to.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

#[async_trait]
impl Workload for Notes {
    fn name(&self) -> &'static str {
        "notes"
    }

    fn about(&self) -> &'static str {
        "who was measured when"
    }

    async fn round(&self, subject: &Subject, _: &Scale) -> Result<Vec<Reading>> {
        let mut notes = self.0.lock().unwrap();
        notes.push(subject.label().into());
        match subject.label() {
            "broken" => Err("it is broken".into()),
            _ => {
                Ok(vec![Reading::of("", vec![Figure::new("at", Unit::Count, notes.len() as f64)])])
            }
        }
    }
}

async fn order(seed: u64) -> (Vec<String>, Outcome) {
    let named = |label: &str| Subject::new(label, "memory:").unwrap();
    let plan = Plan::new(["a", "b", "c", "broken"].map(named).into(), tiny());
    let notes = Notes::default();
    let outcome = plan.rounds(20).seed(seed).run(&notes, |_| ()).await;
    (notes.0.into_inner().unwrap(), outcome)
}

#[tokio::test]
async fn the_seed_decides_the_order_and_all_take_turns() {
    let (one, outcome) = order(1).await;
    assert_eq!(one, order(1).await.0);
    assert_ne!(one, order(2).await.0);
    // Once it has failed it is left alone.
    assert_eq!(one.iter().filter(|label| *label == "broken").count(), 1);
    let sound: Vec<_> = one.iter().filter(|label| *label != "broken").collect();
    for round in sound.chunks(3) {
        let mut round: Vec<_> = round.iter().map(|label| label.as_str()).collect();
        round.sort_unstable();
        assert_eq!(round, ["a", "b", "c"]);
    }
    let table = report::table(&outcome);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[0], "notes: who was measured when");
    assert!(lines[1].trim() == "AT" && lines[2].starts_with("  a       "), "{table}");
    assert_eq!(lines[5], "  broken  not measured: it is broken");
}

#[tokio::test]
async fn a_backend_that_is_not_there_stands_in_the_table_with_the_reason() {
    let subject = Subject::new("lost", "sqlite:/nowhere/at/all/locks.db").unwrap();
    for workload in workloads::ALL {
        let plan = Plan::new(vec![subject.clone(), memory()], tiny()).rounds(1);
        let outcome = plan.run(workload, |_| ()).await;
        let reason = outcome.subjects[0].rows.as_ref().unwrap_err();
        assert!(!reason.is_empty());
        assert!(outcome.subjects[1].rows.is_ok(), "{outcome:?}");
        assert!(report::table(&outcome).contains(&format!("lost    not measured: {reason}")));
    }
}

#[tokio::test]
async fn what_takes_too_long_is_given_up() {
    let plan = Plan::new(vec![memory()], tiny().limit(Duration::from_millis(1))).rounds(2);
    let outcome = plan.run(&ManyNames, |_| ()).await;
    assert_eq!(outcome.subjects[0].rows.as_ref().unwrap_err(), "not done within 1ms");
}
