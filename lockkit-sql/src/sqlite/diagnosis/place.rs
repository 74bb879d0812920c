//! The file, its folder and their file system.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use lockkit_core::Diagnosis;
use rustix::fs::{Access, access, statvfs};

use crate::sqlite::database::{self, Location};

const MIB: u64 = 1 << 20;

/// The log takes some 4 MiB before it is emptied, and the database about as much.
const LITTLE_SPACE: u64 = 32 * MIB;

/// What a grant may add to the log.
const NO_SPACE: u64 = 32 << 10;

const LONG_LOG: u64 = 64 * MIB;

/// # Errors
///
/// The one finding that makes all others moot.
pub(super) fn look_at(location: &Location) -> Result<Vec<Diagnosis>, Diagnosis> {
    let path = location.path();
    location.check().map_err(|problem| {
        Diagnosis::error(
            "file",
            format!("{}: {problem}", path.display()),
            "see that the file stays where it is, and restart all that use it",
        )
    })?;
    let mut findings = vec![file_system(path)];
    findings.extend(rights(path));
    findings.extend([space(path), log(path)]);
    Ok(findings)
}

fn file_system(path: &Path) -> Diagnosis {
    match database::check_place_blocking(path) {
        Ok(()) => {
            let finding = format!("{} is on a local file system, under one name", path.display());
            Diagnosis::good("file system", finding)
        }
        Err(problem) => Diagnosis::error(
            "file system",
            format!("{}: {problem}", path.display()),
            "keep the locks in a file with one name on a local disk, and let all use that",
        ),
    }
}

/// What this process may do, and whether everybody may.
fn rights(path: &Path) -> Vec<Diagnosis> {
    let folder = path.parent().unwrap_or(path);
    let mut findings = Vec::new();
    // The log is a file of its own, which the first process to open the database makes.
    for (path, needed, lacks) in [
        (path, Access::READ_OK | Access::WRITE_OK, "read and write"),
        (folder, Access::WRITE_OK | Access::EXEC_OK, "make files in"),
    ] {
        if let Err(error) = access(path, needed) {
            findings.push(Diagnosis::error(
                "rights",
                format!("this process may not {lacks} {}: {error}", path.display()),
                format!(
                    "let its user write there, `chown USER {}`, and see that it is not mounted \
                     read-only",
                    path.display()
                ),
            ));
        }
    }
    for (path, danger) in [
        (path, "change or delete every lock"),
        (folder, "put another file in place of the database or its log"),
    ] {
        match std::fs::metadata(path).map(|metadata| metadata.permissions().mode()) {
            Ok(mode) if mode & 0o002 == 0 => (),
            Ok(_) => findings.push(Diagnosis::warning(
                "rights",
                format!("everybody may write to {}, and so {danger}", path.display()),
                format!("take that right away: `chmod o-w {}`", path.display()),
            )),
            Err(error) => findings.push(Diagnosis::warning(
                "rights",
                format!("who may write to {} cannot be found out: {error}", path.display()),
                "let this process search the folders above it",
            )),
        }
    }
    if findings.is_empty() {
        let finding = "this process may write to the file and its folder, and not everybody may";
        findings.push(Diagnosis::good("rights", finding));
    }
    findings
}

fn space(path: &Path) -> Diagnosis {
    match statvfs(path) {
        Ok(file_system) => room(file_system.f_bavail.saturating_mul(file_system.f_frsize)),
        Err(error) => Diagnosis::warning(
            "space",
            format!("how much room the file system has cannot be found out: {error}"),
            format!("look by hand: `df {}`", path.display()),
        ),
    }
}

fn room(free: u64) -> Diagnosis {
    let finding = format!("the file system has room for {} MiB", free / MIB);
    match free {
        LITTLE_SPACE.. => Diagnosis::good("space", finding),
        ..NO_SPACE => Diagnosis::error(
            "space",
            format!("{finding}: once the log has to grow, no lock can be taken or renewed"),
            "make room",
        ),
        _ => Diagnosis::warning(
            "space",
            finding,
            "make room: on a full disk no lock can be taken or renewed once the log has to grow",
        ),
    }
}

/// The log is begun anew now and then, unless somebody still reads what is in it.
fn log(path: &Path) -> Diagnosis {
    let length = match std::fs::metadata(log_of(path)) {
        Ok(metadata) => metadata.len(),
        // Nobody has the database open.
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => {
            return Diagnosis::warning(
                "log",
                format!("how long the write-ahead log is cannot be found out: {error}"),
                "let this process search the folder of the database",
            );
        }
    };
    let finding = format!("the write-ahead log has {} MiB", length / MIB);
    match length {
        ..LONG_LOG => Diagnosis::good("log", finding),
        _ => Diagnosis::warning(
            "log",
            format!("{finding}: somebody keeps, or kept, a read transaction open"),
            format!(
                "find who, and end it: `fuser -v {}`; the log shrinks once all have closed the \
                 database",
                path.display()
            ),
        ),
    }
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

#[cfg(test)]
mod tests {
    use lockkit_core::Grade;

    use super::{MIB, room};

    #[test]
    fn little_room_is_a_warning_and_none_an_error() {
        assert_eq!(room(100 * MIB).grade(), Grade::Good);
        assert_eq!(room(4096).grade(), Grade::Error);
        let tight = room(3 * MIB);
        assert_eq!(tight.grade(), Grade::Warning);
        assert_eq!(tight.finding(), "the file system has room for 3 MiB");
    }
}
