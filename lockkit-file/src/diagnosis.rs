//! Whether a folder is fit to keep locks, and what is in it. Nothing is written.

use std::fmt::Display;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use lockkit_core::driver::ErrorKind;
use lockkit_core::{Diagnosis, Namespace};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use crate::entered::STAY_OPEN;
use crate::error::Problem;
use crate::folder::Folder;
use crate::look;
use crate::record::SLOT;
use crate::time;

const MIB: u64 = 1 << 20;

const LOCK_FILE: u64 = 2 * SLOT as u64;
const LITTLE_SPACE: u64 = 8 * MIB;
const FEW_INODES: u64 = 1000;
const FEW_DESCRIPTORS: u64 = 100;
const MANY_FILES: usize = 10_000;

/// How far the wall clock of a host that is in order may have been set back, in microseconds.
const SET_BACK: u64 = 1_000_000;

/// Looks at the files until `limit`.
pub(crate) fn diagnose(folder: &Folder, namespace: &Namespace, limit: Instant) -> Vec<Diagnosis> {
    if let Err(problem) = folder.check() {
        return vec![unfit(folder.path(), &problem)];
    }
    let found = folder.find(namespace);
    // The folder of the namespace may have been mounted by itself.
    let place = found.as_ref().ok().and_then(Option::as_deref).unwrap_or(folder.path());
    let mut findings = vec![
        Diagnosis::good("file system", format!("{} is on a local one", place.display())),
        persistence(place),
        space(place),
        descriptors(),
    ];
    match found {
        Err(problem) => findings.push(unfit(&folder.path_of(namespace), &problem)),
        Ok(None) => findings.push(rights(folder.path())),
        Ok(Some(path)) => {
            findings.push(rights(&path));
            match Census::of(folder, namespace, limit) {
                Err(problem) if problem.kind() == ErrorKind::Unreachable => {
                    findings.push(not_known(
                        "files",
                        "what is in the folder",
                        problem,
                        format!("ls -U {} | wc -l", path.display()),
                    ));
                }
                Err(problem) => findings.push(unfit(&path, &problem)),
                Ok(census) => findings.extend(census.findings(&path)),
            }
        }
    }
    findings
}

/// No lock can be taken, or none that is worth having.
fn unfit(path: &Path, problem: &Problem) -> Diagnosis {
    let finding = format!("{}: {problem}", path.display());
    match problem.kind() {
        ErrorKind::Denied => Diagnosis::error(
            "rights",
            finding,
            "let the user of this process read and write there, and search the folders above it",
        ),
        ErrorKind::Misconfigured => Diagnosis::error(
            "folder",
            finding,
            "give the locks a folder on a local disk that only their users may write to: \
             `install -d -o USER -g GROUP -m 2770 FOLDER`",
        ),
        _ => Diagnosis::error("folder", finding, "look for a disk that fails: `dmesg`"),
    }
}

fn not_known(topic: &'static str, what: &str, error: impl Display, command: String) -> Diagnosis {
    let finding = format!("{what} cannot be found out: {error}");
    Diagnosis::warning(topic, finding, format!("look by hand: `{command}`"))
}

fn persistence(path: &Path) -> Diagnosis {
    match is_in_memory(path) {
        Ok(false) => {
            Diagnosis::good("persistence", "no token is granted again after a loss of power")
        }
        Ok(true) => Diagnosis::warning(
            "persistence",
            "the folder is in memory (tmpfs): after a reboot tokens rise only if the wall clock \
             has not fallen behind",
            "if what checks the tokens outlives a reboot, give the locks a folder on a disk",
        ),
        Err(error) => not_known(
            "persistence",
            "whether the folder is on a disk",
            error,
            format!("findmnt -T {}", path.display()),
        ),
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_in_memory(path: &Path) -> io::Result<bool> {
    /// From `linux/magic.h`: tmpfs and ramfs.
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    // Magic numbers have 32 bits, whatever the type of the field.
    Ok(IN_MEMORY.contains(&(rustix::fs::statfs(path)?.f_type as u32)))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_in_memory(_: &Path) -> io::Result<bool> {
    Ok(false)
}

fn space(path: &Path) -> Diagnosis {
    match statvfs(path) {
        Ok(system) => {
            // Some file systems make inodes as they need them, and say that they have none.
            let inodes = (system.f_files > 0).then_some(system.f_favail);
            room(system.f_bavail.saturating_mul(system.f_frsize), inodes)
        }
        Err(error) => not_known(
            "space",
            "how much room there is",
            error,
            format!("df {0}; df -i {0}", path.display()),
        ),
    }
}

fn room(bytes: u64, inodes: Option<u64>) -> Diagnosis {
    let files = inodes.map_or(String::new(), |inodes| format!(" and {inodes} files"));
    let finding = format!("the file system has room for {} MiB{files}", bytes / MIB);
    if bytes >= LITTLE_SPACE && inodes.is_none_or(|inodes| inodes >= FEW_INODES) {
        return Diagnosis::good("space", finding);
    }
    if bytes < LOCK_FILE || inodes == Some(0) {
        return Diagnosis::error(
            "space",
            format!("{finding}: no lock can be taken that is new here"),
            "make room; locks that are held stay",
        );
    }
    Diagnosis::warning(
        "space",
        finding,
        "make room: on a full disk no lock can be taken that is new here; those that are held stay",
    )
}

fn descriptors() -> Diagnosis {
    let most = getrlimit(Resource::Nofile).current;
    // One of them is open only to count them.
    match std::fs::read_dir("/dev/fd").map(|open| open.count().saturating_sub(1) as u64) {
        Ok(open) => descriptors_of(open, most),
        Err(error) => not_known(
            "descriptors",
            "how many files this process has open",
            error,
            format!("ls /proc/{}/fd", std::process::id()),
        ),
    }
}

fn descriptors_of(open: u64, most: Option<u64>) -> Diagnosis {
    let limit = most.map_or("any number".into(), |most| most.to_string());
    let finding = format!(
        "this process has {open} files open and may have {limit}; each lock that it holds is one, \
         and so are up to {STAY_OPEN} folders of namespaces"
    );
    match most {
        Some(most) if most.saturating_sub(open) < FEW_DESCRIPTORS => {
            Diagnosis::warning("descriptors", finding, "raise the limit: `ulimit -n`")
        }
        _ => Diagnosis::good("descriptors", finding),
    }
}

/// What this process may do, and who else may.
fn rights(path: &Path) -> Diagnosis {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            let command = format!("ls -ld {}", path.display());
            return not_known("rights", "who may use the locks", error, command);
        }
    };
    match access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => {
            let finding = format!("{} can be used by {}", path.display(), users(&metadata));
            Diagnosis::good("rights", finding)
        }
        Err(error) => Diagnosis::error(
            "rights",
            format!(
                "this process may not write to {}, which {} can: {error}",
                path.display(),
                users(&metadata)
            ),
            "run as one of those users, and see that it is not mounted read-only",
        ),
    }
}

fn users(folder: &Metadata) -> String {
    let mut users = format!("user {}", folder.uid());
    if folder.mode() & 0o020 != 0 {
        users.push_str(&format!(" and group {}", folder.gid()));
    }
    if folder.mode() & 0o002 != 0 {
        users.push_str(", and a namespace of his own in it by everybody else");
    }
    users
}

/// What is in the folder of a namespace.
#[derive(Debug, Default)]
struct Census {
    locks: usize,
    held: usize,
    /// How many files cannot be used, and what is the matter with one of them.
    bad: usize,
    example: Option<String>,
    last_token: u64,
}

impl Census {
    fn of(folder: &Folder, namespace: &Namespace, limit: Instant) -> Result<Self, Problem> {
        let mut census = Self::default();
        for entry in look::entries(folder, namespace, limit)? {
            let entry = entry?;
            let holder = entry.holder();
            let content = entry.content.and_then(|content| holder.map(|holder| (content, holder)));
            match content {
                Ok((content, holder)) => {
                    census.locks += 1;
                    census.held += usize::from(holder.is_some());
                    let token = content.map_or(0, |(_, record)| record.token.get());
                    census.last_token = census.last_token.max(token);
                }
                Err(problem) => {
                    census.bad += 1;
                    census.example = Some(format!("{}: {problem}", entry.path.display()));
                }
            }
        }
        Ok(census)
    }

    fn findings(&self, path: &Path) -> impl Iterator<Item = Diagnosis> {
        [Some(self.files(path)), self.bad_files(), Some(self.clock(time::of_day()))]
            .into_iter()
            .flatten()
    }

    fn files(&self, path: &Path) -> Diagnosis {
        let Self { locks, held, .. } = self;
        let finding =
            format!("{} has {locks} lock files, of which {held} are held", path.display());
        match self.locks {
            ..MANY_FILES => Diagnosis::good("files", finding),
            _ => Diagnosis::warning(
                "files",
                format!("{finding}; one is removed once it has not been used for over a day"),
                "have a process that runs for hours connect to it, which removes them; let names \
                 come back, or make fewer of them of a hash; while nobody uses the folder it can be \
                 removed, and tokens go on rising",
            ),
        }
    }

    fn bad_files(&self) -> Option<Diagnosis> {
        let example = self.example.as_ref()?;
        Some(Diagnosis::warning(
            "foreign files",
            format!("{} files cannot be used as locks, such as {example}", self.bad),
            "move them away once nobody relies on them",
        ))
    }

    fn clock(&self, now: u64) -> Diagnosis {
        let behind = self.last_token.saturating_sub(now);
        if behind <= SET_BACK {
            return Diagnosis::good(
                "clock",
                "the wall clock is past every token, so that tokens also rise over a file that is \
                 lost",
            );
        }
        Diagnosis::warning(
            "clock",
            format!(
                "the wall clock is {} s behind the highest token: if a lock file were lost now, \
                 its tokens would be given again",
                behind / 1_000_000
            ),
            "see that the clock is right: `date`, `timedatectl`; do not remove lock files until \
             it has caught up",
        )
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::{Census, MANY_FILES, MIB, descriptors_of, room};

    #[test]
    fn little_room_is_a_warning_and_none_an_error() {
        for (bytes, inodes, grade) in [
            (100 * MIB, Some(5000), Grade::Good),
            (100 * MIB, None, Grade::Good),
            (3 * MIB, Some(5000), Grade::Warning),
            (100 * MIB, Some(7), Grade::Warning),
            (4096, Some(5000), Grade::Error),
            (100 * MIB, Some(0), Grade::Error),
        ] {
            let finding = room(bytes, inodes);
            assert_eq!(finding.grade(), grade, "{finding:?}");
        }
    }

    #[test]
    fn few_descriptors_are_a_warning() {
        for (open, most, grade) in [
            (10, Some(1024), Grade::Good),
            (10, None, Grade::Good),
            (1000, Some(1024), Grade::Warning),
            (1000, Some(10), Grade::Warning),
        ] {
            let finding = descriptors_of(open, most);
            assert_eq!(finding.grade(), grade, "{finding:?}");
        }
    }

    #[test]
    fn very_many_files_are_a_warning() {
        for (locks, grade) in [(MANY_FILES - 1, Grade::Good), (MANY_FILES, Grade::Warning)] {
            let finding = Census { locks, ..Census::default() }.files("/locks".as_ref());
            assert_eq!(finding.grade(), grade, "{finding:?}");
        }
    }

    #[test]
    fn a_wall_clock_that_was_set_back_is_a_warning() {
        let census = Census { last_token: 100_000_000, ..Census::default() };
        assert_eq!(census.clock(100_000_001).grade(), Grade::Good);
        let finding = census.clock(40_000_000);
        assert_eq!(finding.grade(), Grade::Warning);
        assert!(finding.finding().contains("60 s behind"), "{finding:?}");
    }
}
