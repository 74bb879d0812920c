//! A run in the order in which reports tell it: workload, backend, case; and who is behind whom.

use lockkit_bench::{Spread, Unit};

use crate::run::{Absence, Entry, Placement, Role, Round, Run};

/// Figures that are nearer than this are taken to be the same.
const SAME: f64 = 1.02;

/// Uncontended, lockkit is to be within this of the floor.
pub(super) const TARGET: f64 = 1.10;

/// How many times a round tells of; no figure that one can be behind in.
pub(super) const TIMES: &str = "times a round";

/// All that one workload has found out.
#[derive(Debug)]
pub(super) struct Work<'a> {
    pub(super) name: &'a str,
    pub(super) backends: Vec<Place<'a>>,
}

/// What one workload has found out on one backend.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) backend: &'a str,
    pub(super) groups: Vec<Group<'a>>,
    pub(super) absences: Vec<&'a Absence>,
}

/// What can be compared: one case in one placement.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) case: &'a str,
    pub(super) placement: Placement,
    pub(super) rows: Vec<Row<'a>>,
}

/// One subject.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) entry: &'a Entry,
    pub(super) figures: Vec<(&'a str, Spread)>,
}

/// One row of lockkit that is behind another row.
#[derive(Debug)]
pub(super) struct Behind<'a> {
    pub(super) ours: &'a Entry,
    pub(super) theirs: &'a Entry,
    /// In what.
    pub(super) figures: Vec<Loss<'a>>,
}

impl Behind<'_> {
    /// Whether all rounds of some figure say so.
    pub(super) fn is_clear(&self) -> bool {
        self.figures.iter().any(|loss| !loss.is_unclear())
    }
}

/// By how much a figure is worse than another's.
#[derive(Debug)]
pub(super) struct Loss<'a> {
    pub(super) name: &'a str,
    pub(super) ours: Spread,
    pub(super) theirs: Spread,
    /// How much of the other's it is.
    ratio: Spread,
}

impl Loss<'_> {
    /// How many times worse; infinite next to nothing.
    pub(super) fn factor(&self) -> f64 {
        let factor = self.ratio.median;
        if factor < 1.0 { 1.0 / factor } else { factor }
    }

    /// Whether some rounds say the opposite.
    pub(super) fn is_unclear(&self) -> bool {
        self.ratio.least <= 1.0 && self.ratio.most >= 1.0
    }
}

impl<'a> Row<'a> {
    fn new(entry: &'a Entry) -> Self {
        let mut row = Self { entry, figures: Vec::new() };
        for figure in entry.rounds.iter().flat_map(Round::told) {
            if row.figure(&figure.name).is_none() {
                let values = row.values(&figure.name).into_iter().map(|(_, value)| value);
                let spread = Spread::of(figure.unit, values);
                row.figures.extend(spread.map(|spread| (&*figure.name, spread)));
            }
        }
        let times = entry.rounds.iter().filter_map(|round| round.times).map(|times| times as f64);
        row.figures.extend(Spread::of(Unit::Count, times).map(|spread| (TIMES, spread)));
        row
    }

    pub(super) fn figure(&self, name: &str) -> Option<Spread> {
        self.figures.iter().find(|(other, _)| *other == name).map(|(_, spread)| *spread)
    }

    /// How much of another row's a figure is, round by round: what disturbs the machine in a round
    /// disturbs all that are measured in it. Those who have no two rounds in common, where one has
    /// several, are compared by their spreads.
    pub(super) fn ratio(&self, other: &Row<'_>, name: &str) -> Option<Spread> {
        let (one, two) = (self.figure(name)?, other.figure(name)?);
        let (ours, theirs) = (self.values(name), other.values(name));
        let in_round = |&(round, a): &(usize, f64)| {
            let (_, b) = theirs.iter().find(|(other, _)| *other == round)?;
            Some(over(a, *b))
        };
        let in_both: Vec<f64> = ours.iter().filter_map(in_round).collect();
        let enough = ours.len().max(theirs.len()).min(2);
        if in_both.len() >= enough {
            return Spread::of(Unit::Ratio, in_both);
        }
        let (least, most) = (over(one.least, two.most), over(one.most, two.least));
        Spread::of(Unit::Ratio, [least, over(one.median, two.median), most])
    }

    /// Each with the number of its round.
    fn values(&self, name: &str) -> Vec<(usize, f64)> {
        let in_round = |(number, round): (usize, &Round)| {
            let figure = round.told().find(|figure| figure.name == name)?;
            Some((number, figure.value))
        };
        self.entry.rounds.iter().enumerate().filter_map(in_round).collect()
    }
}

/// Of nothing, nothing is all.
fn over(one: f64, other: f64) -> f64 {
    if one == other { 1.0 } else { one / other }
}

impl<'a> Group<'a> {
    /// The figure that ratios are made of: the first of the first row.
    pub(super) fn main_figure(&self) -> Option<&'a str> {
        self.rows.iter().find_map(|row| row.figures.first()).map(|(name, _)| *name)
    }

    /// How much of that of lockkit the main figure of a row is: of its first kind, if there are
    /// several.
    pub(super) fn of_lockkit(&self, row: &Row<'_>) -> Option<f64> {
        self.ratio(row, self.rows.iter().find(|row| row.entry.role == Role::Lockkit)?)
    }

    /// How much of that of the floor the main figure of a row is.
    pub(super) fn of_floor(&self, row: &Row<'_>) -> Option<f64> {
        self.ratio(row, self.floor(row.entry)?)
    }

    /// The floor under a row: that of its kind, as `floor, session` is under `lockkit, session`,
    /// else the first.
    fn floor(&self, entry: &Entry) -> Option<&Row<'a>> {
        let mut floors = self.rows.iter().filter(|row| row.entry.role == Role::Floor);
        let of_its_kind = |row: &&Row<'_>| kind(&row.entry.subject) == kind(&entry.subject);
        floors.clone().find(of_its_kind).or_else(|| floors.next())
    }

    fn ratio(&self, row: &Row<'_>, other: &Row<'_>) -> Option<f64> {
        let ratio = row.ratio(other, self.main_figure()?)?.median;
        ratio.is_finite().then_some(ratio)
    }

    /// In the order of their first appearance.
    pub(super) fn names(&self) -> Vec<(&'a str, Unit)> {
        let mut names: Vec<(&str, Unit)> = Vec::new();
        for (name, spread) in self.rows.iter().flat_map(|row| &row.figures) {
            if names.iter().all(|(other, _)| other != name) {
                names.push((name, spread.unit));
            }
        }
        names
    }

    fn behind(&self, workload: &str) -> Vec<Behind<'a>> {
        let ours = self.rows.iter().filter(|row| row.entry.role == Role::Lockkit);
        let pairs = ours.flat_map(|ours| self.rows.iter().map(move |theirs| (ours, theirs)));
        // What lockkit adds to a request shows where it is the only one.
        let pairs = pairs.filter(|(ours, theirs)| match theirs.entry.role {
            Role::Peer => true,
            Role::Floor => {
                let floor = self.floor(ours.entry).map(|row| row.entry);
                workload == "uncontended" && floor.is_some_and(|it| std::ptr::eq(it, theirs.entry))
            }
            Role::Lockkit => false,
        });
        let behind = pairs.map(|(ours, theirs)| Behind {
            ours: ours.entry,
            theirs: theirs.entry,
            figures: losses(ours, theirs, self.main_figure()),
        });
        behind.filter(|behind| !behind.figures.is_empty()).collect()
    }
}

/// Where a row of lockkit is behind another.
fn losses<'a>(ours: &Row<'a>, theirs: &Row<'a>, main_figure: Option<&str>) -> Vec<Loss<'a>> {
    let both = ours.figures.iter().filter_map(|&(name, figure)| {
        let (theirs, ratio) = (theirs.figure(name)?, ours.ratio(theirs, name)?);
        Some(Loss { name, ours: figure, theirs, ratio })
    });
    let is_worse = |loss: &Loss<'_>| match greater_is_better(loss.name, loss.ours.unit) {
        true => loss.ratio.median < 1.0,
        false => loss.ratio.median > 1.0,
    };
    let worse = both.filter(|loss| is_worse(loss) && loss.factor() > SAME);
    match theirs.entry.role {
        Role::Floor => {
            let is_over =
                |loss: &Loss<'_>| Some(loss.name) == main_figure && loss.factor() > TARGET;
            worse.filter(is_over).collect()
        }
        Role::Lockkit | Role::Peer => worse.collect(),
    }
}

/// Of `lockkit, session`, the `session`.
fn kind(subject: &str) -> Option<&str> {
    subject.split_once(", ").map(|(_, kind)| kind)
}

/// Whether more of that figure is better.
pub(super) fn greater_is_better(name: &str, unit: Unit) -> bool {
    match unit {
        Unit::PerSecond => !name.starts_with("requests"),
        _ => matches!(name, "Jain" | "least left"),
    }
}

/// The workloads of a run.
pub(super) fn works(run: &Run) -> Vec<Work<'_>> {
    let mut works: Vec<Work<'_>> = Vec::new();
    for entry in &run.entries {
        let place = place(&mut works, &entry.workload, &entry.backend);
        let is_same =
            |group: &&mut Group<'_>| group.case == entry.case && group.placement == entry.placement;
        match place.groups.iter_mut().find(is_same) {
            Some(group) => group.rows.push(Row::new(entry)),
            None => place.groups.push(Group {
                case: &entry.case,
                placement: entry.placement,
                rows: vec![Row::new(entry)],
            }),
        }
    }
    for absence in &run.absences {
        match &absence.workload {
            Some(workload) => place(&mut works, workload, &absence.backend).absences.push(absence),
            // Wherever others could be measured there.
            None => {
                let places = works.iter_mut().flat_map(|work| &mut work.backends);
                let there = places.filter(|place| place.backend == absence.backend);
                there.for_each(|place| place.absences.push(absence));
            }
        }
    }
    // Of the others, those that came first.
    works.sort_by_key(|work| {
        ORDER.iter().position(|name| *name == work.name).unwrap_or(ORDER.len())
    });
    works
}

/// From what everybody wants to know to what few do.
const ORDER: [&str; 8] = [
    "uncontended",
    "hand-over",
    "contended",
    "recovery",
    "waiters",
    "many-names",
    "stock",
    "granularity",
];

fn place<'w, 'a>(
    works: &'w mut Vec<Work<'a>>,
    name: &'a str,
    backend: &'a str,
) -> &'w mut Place<'a> {
    let at = works.iter().position(|work| work.name == name).unwrap_or_else(|| {
        works.push(Work { name, backends: Vec::new() });
        works.len() - 1
    });
    let backends = &mut works[at].backends;
    let at = backends.iter().position(|place| place.backend == backend).unwrap_or_else(|| {
        backends.push(Place { backend, groups: Vec::new(), absences: Vec::new() });
        backends.len() - 1
    });
    &mut backends[at]
}

/// What a workload has found out on a backend.
pub(super) fn place_of<'w, 'a>(
    works: &'w [Work<'a>],
    workload: &str,
    backend: &str,
) -> Option<&'w Place<'a>> {
    let work = works.iter().find(|work| work.name == workload)?;
    work.backends.iter().find(|place| place.backend == backend)
}

/// All that can be compared, each with its workload and its backend.
pub(super) fn groups<'w, 'a>(
    works: &'w [Work<'a>],
) -> impl Iterator<Item = (&'a str, &'a str, &'w Group<'a>)> {
    let places = works.iter().flat_map(|work| work.backends.iter().map(move |at| (work.name, at)));
    places.flat_map(|(name, at)| at.groups.iter().map(move |group| (name, at.backend, group)))
}

/// Every row in which a peer is ahead of lockkit, or the floor by more than [`TARGET`].
pub(super) fn behind<'a>(works: &[Work<'a>]) -> Vec<Behind<'a>> {
    groups(works).flat_map(|(name, _, group)| group.behind(name)).collect()
}

/// What a workload measures; nothing for one that is not known.
pub(super) fn about(workload: &str) -> &'static str {
    match workload {
        "uncontended" => {
            "One client acquires and releases a lock that nobody else wants. The floor is exactly \
             the same requests, sent by hand through the same client library."
        }
        "hand-over" => {
            "One client waits while another holds: the time from the call of release to the \
             waiter's guard. It is called once the waiter has waited for a while, which is drawn for \
             each round and the same for all. The floor is one raw request and one push."
        }
        "contended" => {
            "2, 8 and 64 clients want one lock all the time, with nothing and with a millisecond \
             of work under it. Jain's index is 1 where all get as much; of less than four grants a \
             client there is none. Whoever's last client waited for long after the end was not \
             asked again: such a row has one round."
        }
        "many-names" => {
            "One client holds many locks and keeps them alive: 1,000, and 10,000 of the plain kind on \
             the smaller set-up of each backend, each in one round. A client's memory is what it has \
             of its own, without its code."
        }
        "waiters" => {
            "Many of one process wait for one lock, until each has had it: 1,000, and 10,000 of the \
             plain kind on the smaller set-up of each backend, each in one round. A client's memory \
             is what it has of its own, without its code."
        }
        "recovery" => {
            "The process that holds is killed: the time until another that waits has the lock. In a \
             round all holders are killed as long after they have it, at random between two renewals."
        }
        "stock" => {
            "The same stock is sold under a lock, by the backend's own atomic operation, and by an \
             optimistic version: where no lock is the better answer."
        }
        "granularity" => {
            "What a distributed lock costs where one of the process or of the host would do."
        }
        _ => "",
    }
}

/// What is to be known of rows beside their figures: whose, and what.
pub(super) fn notes<'a>(workload: &str, place: &Place<'a>) -> Vec<(&'a str, &'static str)> {
    let mut notes = Vec::new();
    for row in place.groups.iter().flat_map(|group| &group.rows) {
        let Entry { backend, subject, role, .. } = row.entry;
        let known = note(workload, backend, subject, *role).map(|text| (&**subject, text));
        notes.extend(known.filter(|note| !notes.contains(note)));
    }
    notes
}

fn note(workload: &str, backend: &str, subject: &str, role: Role) -> Option<&'static str> {
    let is_waited_for = matches!(workload, "hand-over" | "contended");
    match (backend, role) {
        ("sqlite", Role::Lockkit) if is_waited_for => Some(
            "All clients are of one process where a row does not say two, and in it a release wakes the next waiter. Those of \
             other processes poll, every 5 to 100 ms.",
        ),
        ("file", Role::Lockkit) if is_waited_for => Some(
            "All clients are of one process where a row does not say two. On Linux those of other processes hear of a release \
             in the same way, from the kernel; elsewhere all poll.",
        ),
        ("file", Role::Peer) if subject == "tooz" && workload == "hand-over" => Some(
            "Both clients are threads of one process, which wait for one another in it. Those of \
             other processes poll.",
        ),
        (_, Role::Peer) if subject == "etcd-client v3lock" && workload == "hand-over" => Some(
            "The server tells a waiter that has waited for less than 100 ms when these are over, and \
             others at once. Here all have waited for longer.",
        ),
        (_, Role::Peer)
            if subject.starts_with("zookeeper-client")
                && matches!(workload, "uncontended" | "contended") =>
        {
            Some(
                "Its release is a drop: the node is deleted in the background. Nobody can wait for \
                 that, and its time is no part of these figures.",
            )
        }
        _ => None,
    }
}

/// Of a placement, where it is told.
pub(super) fn placed(placement: Placement) -> &'static str {
    match placement {
        Placement::Pinned => "pinned",
        Placement::Unpinned => "unpinned",
    }
}
