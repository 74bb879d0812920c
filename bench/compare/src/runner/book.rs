use std::collections::{BTreeMap, BTreeSet};

use crate::run::{Absence, Entry, Placement, Round};
use crate::subject::Subject;
use crate::workloads::WORKLOADS;

/// What was found out so far.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// In the order of reports.
    entries: BTreeMap<(usize, usize, Key), Entry>,
    given_up: BTreeSet<(String, Key)>,
    absences: Vec<Absence>,
    backends: Vec<String>,
}

/// What is measured of whom: a workload, a subject of the backend, where it runs, and a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    subject: usize,
    is_unpinned: bool,
    case: usize,
    workload: &'static str,
}

impl Key {
    pub(super) fn new(
        workload: &'static str,
        subject: usize,
        placement: Placement,
        case: usize,
    ) -> Self {
        Self { workload, subject, is_unpinned: placement == Placement::Unpinned, case }
    }

    pub(super) fn workload(&self) -> &'static str {
        self.workload
    }

    fn placement(&self) -> Placement {
        if self.is_unpinned { Placement::Unpinned } else { Placement::Pinned }
    }
}

impl Book {
    /// Enters another round.
    pub(super) fn enter(
        &mut self,
        key: Key,
        backend: &str,
        subject: &Subject,
        case: &str,
        round: Round,
    ) {
        let workload = WORKLOADS.iter().position(|&name| name == key.workload);
        let place = (workload.unwrap_or(WORKLOADS.len()), self.backend(backend), key.clone());
        let entry = self.entries.entry(place).or_insert_with(|| Entry {
            workload: key.workload.into(),
            backend: backend.into(),
            subject: subject.name.clone(),
            role: subject.role,
            placement: key.placement(),
            case: case.into(),
            rounds: Vec::new(),
        });
        entry.rounds.push(round);
    }

    /// Not to be measured again. What was measured of it in earlier rounds goes.
    pub(super) fn give_up(&mut self, key: Key, absence: Absence) {
        let backend = self.backend(&absence.backend);
        self.entries.retain(|(_, at, other), _| *at != backend || *other != key);
        self.given_up.insert((absence.backend.clone(), key));
        // What can be done nowhere need not be said of each place.
        let is_known = |known: &Absence| {
            (&known.workload, &known.backend, &known.subject, &known.reason)
                == (&absence.workload, &absence.backend, &absence.subject, &absence.reason)
        };
        if !self.absences.iter().any(is_known) {
            self.absences.push(absence);
        }
    }

    pub(super) fn absence(&mut self, absence: Absence) {
        self.absences.push(absence);
    }

    pub(super) fn is_given_up(&self, backend: &str, key: &Key) -> bool {
        self.given_up.contains(&(backend.into(), key.clone()))
    }

    pub(super) fn close(self) -> (Vec<Entry>, Vec<Absence>) {
        (self.entries.into_values().collect(), self.absences)
    }

    /// The number of a backend, in the order in which they come.
    fn backend(&mut self, name: &str) -> usize {
        if let Some(at) = self.backends.iter().position(|backend| backend == name) {
            return at;
        }
        self.backends.push(name.into());
        self.backends.len() - 1
    }
}
