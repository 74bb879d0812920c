//! What sentinels say about one another, and what that means for a failover.

use lockkit_core::Diagnosis;

use crate::sentinel::Sight;

const TOPIC: &str = "sentinels";

/// `sights` are what the sentinels that the URL names say, or why they say nothing.
pub(super) fn findings(group: &str, sights: &[(String, Result<Sight, String>)]) -> Vec<Diagnosis> {
    let mut findings = Vec::new();
    for (sentinel, sight) in sights {
        if let Err(failure) = sight {
            findings.push(Diagnosis::warning(
                TOPIC,
                format!("the sentinel {sentinel} does not tell where the primary is: {failure}"),
                "bring it back, or take it out of the URL",
            ));
        }
    }
    let told: Vec<&Sight> = sights.iter().filter_map(|(_, sight)| sight.as_ref().ok()).collect();
    let Some(first) = told.first() else { return findings };
    if told.iter().any(|sight| (&sight.host, sight.port) != (&first.host, first.port)) {
        let named: Vec<_> = told.iter().map(|it| format!("{}:{}", it.host, it.port)).collect();
        findings.push(Diagnosis::warning(
            TOPIC,
            format!("the sentinels name several primaries: {}", named.join(", ")),
            "wait for a failover to end; if it does not, look at their logs",
        ));
    }
    if let Some(down) = told.iter().find(|sight| sight.is_down) {
        findings.push(Diagnosis::error(
            TOPIC,
            format!("the primary {}:{} is down, says a sentinel", down.host, down.port),
            "wait for a failover; if there is none, look at the log of the sentinel",
        ));
    }
    // Each knows the others, those that the URL names and more.
    let known = told.iter().map(|sight| sight.others + 1).max().unwrap_or_default();
    let quorum = told.iter().map(|sight| sight.quorum).max().unwrap_or_default();
    if quorum > known {
        findings.push(Diagnosis::error(
            TOPIC,
            format!("{quorum} sentinels must agree on a failover, and there are {known}"),
            format!("`SENTINEL SET {group} quorum {}`, or add sentinels", known / 2 + 1),
        ));
    }
    if known < 3 {
        findings.push(Diagnosis::warning(
            TOPIC,
            format!("with {known} in all, no failover comes about when one is lost"),
            "run three or five, on hosts that do not fail together",
        ));
    }
    if let Some(lonely) = told.iter().find(|sight| sight.replicas == 0) {
        findings.push(Diagnosis::warning(
            TOPIC,
            format!("the primary {}:{} has no replica to take over", lonely.host, lonely.port),
            "add a replica",
        ));
    }
    if findings.is_empty() {
        let finding = format!("{known} sentinels, of which {quorum} agree on a failover");
        findings.push(Diagnosis::good(TOPIC, finding));
    }
    findings
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::findings;
    use crate::sentinel::Sight;

    fn sound() -> Sight {
        Sight {
            host: "a".into(),
            port: 1,
            epoch: 0,
            others: 2,
            quorum: 2,
            replicas: 2,
            is_down: false,
        }
    }

    #[test]
    fn what_is_wrong_with_sentinels_is_found() {
        let found = |sights: Vec<Result<Sight, String>>| {
            let sights: Vec<_> = sights.into_iter().map(|sight| ("s".into(), sight)).collect();
            let found = findings("main", &sights);
            let [found] = &*found else { panic!("{found:?}") };
            (found.grade(), found.finding().to_owned())
        };
        let is = |sight: Sight, grade: Grade, word: &str| {
            let (is_grade, finding) = found(vec![Ok(sight)]);
            assert!(is_grade == grade && finding.contains(word), "{is_grade} {finding}");
        };
        is(sound(), Grade::Good, "3 sentinels");
        is(Sight { others: 1, ..sound() }, Grade::Warning, "with 2 in all");
        is(Sight { quorum: 4, ..sound() }, Grade::Error, "there are 3");
        is(Sight { replicas: 0, ..sound() }, Grade::Warning, "no replica");
        is(Sight { is_down: true, ..sound() }, Grade::Error, "is down");
        let other = Sight { host: "b".into(), ..sound() };
        let (_, finding) = found(vec![Ok(sound()), Ok(other)]);
        assert!(finding.contains("a:1, b:1"), "{finding}");
        let (_, finding) = found(vec![Ok(sound()), Err("refused".into())]);
        assert!(finding.contains("refused"), "{finding}");
    }
}
