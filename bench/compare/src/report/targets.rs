//! What lockkit is to reach, and where it does not.

use lockkit_bench::Unit;

use super::digest::{Group, Row, TARGET, Work, placed};
use super::summary::row_name;
use crate::run::{Placement, Role};

/// What a row is to reach.
#[derive(Debug)]
pub(super) struct Aim {
    pub(super) what: &'static str,
    pub(super) unit: Unit,
    /// No more than this.
    pub(super) most: f64,
}

/// What a row has reached.
#[derive(Debug)]
pub(super) struct Reached<'a> {
    pub(super) aim: &'static Aim,
    pub(super) backend: &'a str,
    pub(super) row: String,
    pub(super) subject: &'a str,
    pub(super) value: f64,
}

impl Reached<'_> {
    pub(super) fn is_met(&self) -> bool {
        self.value <= self.aim.most
    }
}

const FLOOR: Aim = Aim { what: "uncontended, of the floor", unit: Unit::Ratio, most: TARGET };

const PYTHON: Aim =
    Aim { what: "hand-over, of that of python-redis-lock", unit: Unit::Ratio, most: 0.25 };

const CURATOR: Aim =
    Aim { what: "hand-over, of that of Curator InterProcessMutex", unit: Unit::Ratio, most: 0.5 };

/// Of figures of a thousand waiters.
const WAITERS: [Aim; 3] = [
    Aim { what: "requests a grant", unit: Unit::Count, most: 4.0 },
    Aim { what: "requests a waiter and third of a lease", unit: Unit::Count, most: 1.0 },
    Aim { what: "client memory a waiter", unit: Unit::Bytes, most: 4096.0 },
];

/// All of a run, workload by workload.
pub(super) fn targets<'a>(works: &[Work<'a>]) -> Vec<Reached<'a>> {
    let mut all = Vec::new();
    for (work, place) in
        works.iter().flat_map(|work| work.backends.iter().map(move |at| (work, at)))
    {
        for group in &place.groups {
            for ours in group.rows.iter().filter(|row| row.entry.role == Role::Lockkit) {
                let reached = |(aim, value)| Reached {
                    aim,
                    backend: place.backend,
                    row: row_name(group.case, placed(group.placement)),
                    subject: &ours.entry.subject,
                    value,
                };
                all.extend(aims(works, work, place.backend, group, ours).into_iter().map(reached));
            }
        }
    }
    all
}

/// What that row is to reach, and what it has.
fn aims(
    works: &[Work<'_>],
    work: &Work<'_>,
    backend: &str,
    group: &Group<'_>,
    ours: &Row<'_>,
) -> Vec<(&'static Aim, f64)> {
    match work.name {
        "uncontended" => group.of_floor(ours).map(|ratio| (&FLOOR, ratio)).into_iter().collect(),
        "hand-over" => {
            let (aim, there, whose) = match backend.split(", ").next() {
                Some("redis") => (&PYTHON, backend.to_owned(), "python-redis-lock"),
                // Of as many servers of another kind.
                Some("zookeeper" | "etcd") => {
                    (&CURATOR, backend.replace("etcd", "zookeeper"), "Curator InterProcessMutex")
                }
                _ => return Vec::new(),
            };
            let theirs = find(works, work.name, &there, group.placement, whose);
            let ratio = theirs.and_then(|theirs| ours.ratio(theirs, "p50"));
            ratio.map(|ratio| (aim, ratio.median)).into_iter().collect()
        }
        "waiters" if group.case == "1000 waiters" => {
            let reached = |aim: &'static Aim| Some((aim, ours.figure(aim.what)?.median));
            WAITERS.iter().filter_map(reached).collect()
        }
        _ => Vec::new(),
    }
}

fn find<'w, 'a>(
    works: &'w [Work<'a>],
    workload: &str,
    backend: &str,
    placement: Placement,
    subject: &str,
) -> Option<&'w Row<'a>> {
    let work = works.iter().find(|work| work.name == workload)?;
    let place = work.backends.iter().find(|place| place.backend == backend)?;
    let groups = place.groups.iter().filter(|group| group.placement == placement);
    groups.flat_map(|group| &group.rows).find(|row| row.entry.subject == subject)
}
