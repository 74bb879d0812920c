use std::collections::BTreeSet;

use crate::run::{Role, Run};

/// From this share of the machine's CPU time on that others used, a run says so at its top.
const OTHERS: f64 = 0.10;
/// From so far on that its rounds lie apart.
const APART: f64 = 0.25;

/// What made figures of a run differ that should be the same; nothing if it was little. A virtual
/// machine cannot see how busy its host is, but its rounds tell.
pub(super) fn noise(run: &Run) -> Option<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let (others, apart) = (run.setup.noise, apart(run));
    let mut reasons = Vec::new();
    if others >= OTHERS {
        reasons.push(format!("others used {} of its CPU time during the run", percent(others)));
    }
    if apart >= APART {
        let apart = percent(apart);
        reasons.push(format!("rounds of the same requests, sent by hand, lay {apart} apart"));
    }
    (!reasons.is_empty()).then(|| reasons.join(", and "))
}

/// How far the medians of the rounds of a floor lie apart, as a share of the one in the middle: of
/// half of the floors of some workload, further.
fn apart(run: &Run) -> f64 {
    let workloads: BTreeSet<&str> = run.entries.iter().map(|entry| &*entry.workload).collect();
    workloads.into_iter().map(|workload| apart_in(run, workload)).fold(0.0, f64::max)
}

fn apart_in(run: &Run, workload: &str) -> f64 {
    let floors =
        run.entries.iter().filter(|entry| entry.role == Role::Floor && entry.workload == workload);
    let mut apart: Vec<f64> = floors
        .filter_map(|entry| {
            let rounds = entry.rounds.iter();
            let figures = rounds.flat_map(|round| &round.figures);
            let mut medians: Vec<f64> =
                figures.filter(|it| it.name == "p50").map(|it| it.value).collect();
            medians.sort_by(f64::total_cmp);
            let (least, most) = (medians.first()?, medians.last()?);
            (medians.len() > 1).then(|| (most - least) / medians[medians.len() / 2])
        })
        .collect();
    apart.sort_by(f64::total_cmp);
    apart.get(apart.len() / 2).copied().unwrap_or_default()
}
