//! Releases of etcd that locks should not rely on.

use etcd_client::StatusResponse;
use lockkit_core::Diagnosis;

/// Faults that locks notice, and the releases that mend them, according to etcd's changelog
/// (<https://github.com/etcd-io/etcd/tree/main/CHANGELOG>).
const FAULTS: &[Fault] = &[
    Fault {
        mended_in: &[(3, 4, 31), (3, 5, 13)],
        text: "a leader that was replaced may end leases that are kept alive",
    },
    Fault {
        mended_in: &[(3, 4, 38), (3, 5, 23), (3, 6, 5)],
        text: "a lease that is over may be answered as kept alive",
    },
    Fault {
        mended_in: &[(3, 4, 42), (3, 5, 28), (3, 6, 9)],
        text: "a member that was stopped may answer with what was before",
    },
];

struct Fault {
    mended_in: &'static [(u32, u32, u32)],
    text: &'static str,
}

impl Fault {
    fn is_in(&self, version: (u32, u32, u32)) -> bool {
        let (major, minor, patch) = version;
        let mended = self.mended_in.iter().find(|mended| (mended.0, mended.1) == (major, minor));
        match mended {
            Some(mended) => patch < mended.2,
            // Older lines were never mended; newer ones began after that.
            None => self.mended_in.iter().all(|mended| (major, minor) < (mended.0, mended.1)),
        }
    }
}

/// What the versions of the members are known for.
pub(crate) fn found(answers: &[&StatusResponse]) -> Diagnosis {
    let mut versions: Vec<&str> = answers.iter().map(|answer| answer.version()).collect();
    versions.sort_unstable();
    versions.dedup();
    let found = format!("etcd {}", versions.join(" and "));
    let faults: Vec<&str> = FAULTS
        .iter()
        .filter(|fault| {
            versions.iter().any(|text| parse(text).is_some_and(|version| fault.is_in(version)))
        })
        .map(|fault| fault.text)
        .collect();
    match faults[..] {
        [] => Diagnosis::good("version", found),
        _ => Diagnosis::warning(
            "version",
            format!("{found} has known faults: {}", faults.join("; ")),
            "upgrade to 3.4.42, 3.5.28, 3.6.9 or later",
        ),
    }
}

fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::{FAULTS, parse};

    #[test]
    fn faults_are_told_by_the_version() {
        for (text, faults) in [
            ("3.3.27", 3),
            ("3.4.23", 3),
            ("3.4.31", 2),
            ("3.4.42", 0),
            ("3.5.16", 2),
            ("3.5.23", 1),
            ("3.5.28", 0),
            ("3.6.0", 2),
            ("3.6.0-rc.1", 2),
            ("3.6.5", 1),
            ("3.6.9", 0),
            ("3.7.0", 0),
            ("4.0.0", 0),
        ] {
            let version = parse(text).unwrap();
            let found = FAULTS.iter().filter(|fault| fault.is_in(version)).count();
            assert_eq!(found, faults, "{text}");
        }
        assert_eq!(parse("unknown"), None);
    }
}
