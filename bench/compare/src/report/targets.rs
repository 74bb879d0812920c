//! What lockkit is to reach, and where it does not.

use lockkit_bench::Unit;

use super::digest::{Group, Row, TARGET, Work, groups, place_of, placed};
use super::summary::row_name;
use crate::run::{Placement, Role};

/// What a row is to reach.
#[derive(Debug)]
struct Aim {
    what: &'static str,
    unit: Unit,
    /// No more than this.
    most: f64,
}

/// What a row has reached.
#[derive(Debug)]
struct Reached<'a> {
    aim: &'static Aim,
    backend: &'a str,
    row: String,
    subject: &'a str,
    value: f64,
}

/// How lockkit stands to what it is to reach.
#[derive(Debug)]
pub(super) struct Targets {
    /// How many rows there are with a target.
    pub(super) rows: usize,
    /// Those that miss it, with the cells of [`HEADS`].
    pub(super) missed: Vec<[String; 6]>,
}

/// What is told of a row that misses its target.
pub(super) const HEADS: [&str; 6] = ["target", "at most", "backend", "row", "subject", "is"];

impl Targets {
    pub(super) fn of(works: &[Work<'_>]) -> Self {
        let all = reached(works);
        let missed = all.iter().filter(|reached| reached.value > reached.aim.most);
        let cells = |Reached { aim, backend, row, subject, value }: &Reached<'_>| {
            let [most, mut value] = [aim.most, *value].map(|value| aim.unit.show(value));
            if value == most {
                value = format!("just above {most}");
            }
            [aim.what.into(), most, (*backend).into(), row.clone(), (*subject).into(), value]
        };
        Self { rows: all.len(), missed: missed.map(cells).collect() }
    }

    /// How many reach it.
    pub(super) fn lead(&self) -> String {
        let Self { rows, missed } = self;
        match missed.len() {
            0 => format!("All {rows} rows that have a target reach it."),
            missing => format!(
                "Of {rows} rows that have a target {} reach it. The others:",
                rows - missing
            ),
        }
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
fn reached<'a>(works: &[Work<'a>]) -> Vec<Reached<'a>> {
    let mut all = Vec::new();
    for (workload, backend, group) in groups(works) {
        for ours in group.rows.iter().filter(|row| row.entry.role == Role::Lockkit) {
            let reached = |(aim, value)| Reached {
                aim,
                backend,
                row: row_name(group.case, placed(group.placement)),
                subject: &ours.entry.subject,
                value,
            };
            all.extend(aims(works, workload, backend, group, ours).into_iter().map(reached));
        }
    }
    all
}

/// What that row is to reach, and what it has.
fn aims(
    works: &[Work<'_>],
    workload: &str,
    backend: &str,
    group: &Group<'_>,
    ours: &Row<'_>,
) -> Vec<(&'static Aim, f64)> {
    match workload {
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
            let theirs = find(works, workload, &there, group.placement, whose);
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
    let place = place_of(works, workload, backend)?;
    let groups = place.groups.iter().filter(|group| group.placement == placement);
    groups.flat_map(|group| &group.rows).find(|row| row.entry.subject == subject)
}
