//! Whether a cluster has all slots, and goes on when it loses a member.

use lockkit_core::Diagnosis;

const TOPIC: &str = "cluster";

/// A cluster as one of its members sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) primaries: usize,
    /// Slots that nobody has.
    pub(super) uncovered: usize,
    /// Whether no slot is served while one is nobody's; `None` if the member does not tell.
    pub(super) wants_all: Option<bool>,
}

pub(super) fn findings(sight: Sight) -> Vec<Diagnosis> {
    let Sight { primaries, uncovered, wants_all } = sight;
    let mut findings = Vec::new();
    if uncovered > 0 {
        let so = match wants_all {
            Some(false) => "locks in them cannot be taken",
            _ => "no lock can be taken",
        };
        findings.push(Diagnosis::error(
            TOPIC,
            format!("{uncovered} slots belong to nobody: {so}"),
            "`redis-cli --cluster fix`, or bring their member back",
        ));
    }
    if wants_all == Some(true) {
        findings.push(Diagnosis::warning(
            TOPIC,
            "when a member is lost without a replica, locks of the others cannot be taken either",
            "`CONFIG SET cluster-require-full-coverage no`, on each member",
        ));
    }
    if primaries < 3 {
        findings.push(Diagnosis::warning(
            TOPIC,
            format!("of {primaries} primaries there is no majority when one is lost: no failover"),
            "have three primaries or more",
        ));
    }
    if findings.is_empty() {
        let finding = format!("{primaries} primaries have all slots");
        findings.push(Diagnosis::good(TOPIC, finding));
    }
    findings
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::{Sight, findings};

    #[test]
    fn what_is_wrong_with_a_cluster_is_found() {
        let sound = Sight { primaries: 3, uncovered: 0, wants_all: Some(false) };
        for (sight, grade, word) in [
            (sound, Grade::Good, "3 primaries"),
            (Sight { uncovered: 7, ..sound }, Grade::Error, "in them"),
            (Sight { uncovered: 7, wants_all: None, ..sound }, Grade::Error, "no lock"),
            (Sight { wants_all: Some(true), ..sound }, Grade::Warning, "either"),
            (Sight { primaries: 2, ..sound }, Grade::Warning, "no majority"),
        ] {
            let found = findings(sight);
            let [found] = &*found else { panic!("{found:?}") };
            assert!(found.grade() == grade && found.finding().contains(word), "{found:?}");
        }
    }
}
