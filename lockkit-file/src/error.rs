//! What the operating system's errors mean for a lock.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use lockkit_core::driver::{DriverError, ErrorKind, filesystem};
use rustix::io::Errno;

/// What went wrong with a file or folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("{text}")]
    Found { kind: ErrorKind, text: Cow<'static, str> },
}

impl Problem {
    /// Something about the file or folder itself.
    pub(crate) fn found(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Found { kind, text: text.into() }
    }

    /// Says where it happened.
    pub(crate) fn at(self, path: &Path) -> DriverError {
        DriverError::new(self.kind(), AtPath { path: path.into(), problem: self })
    }

    /// Whether a file or folder was not there.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Found { kind, .. } => *kind,
            Self::System(error) => kind(error),
        }
    }
}

fn kind(error: &io::Error) -> ErrorKind {
    if let Some(kind) = filesystem::error_kind(error) {
        return kind;
    }
    match Errno::from_io_error(error) {
        // A link, a folder, a socket, a device.
        Some(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV) => ErrorKind::Foreign,
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::STALE | Errno::NOTSUP) => {
            ErrorKind::Misconfigured
        }
        _ => ErrorKind::Unknown,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
struct AtPath {
    path: PathBuf,
    #[source]
    problem: Problem,
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use lockkit_core::driver::ErrorKind;
    use rustix::io::Errno;

    use super::Problem;

    #[test]
    fn only_what_may_pass_is_asked_for_again() {
        for (errno, kind) in [
            (Errno::NOSPC, ErrorKind::Capacity),
            (Errno::DQUOT, ErrorKind::Capacity),
            (Errno::MFILE, ErrorKind::Capacity),
            (Errno::NFILE, ErrorKind::Capacity),
            (Errno::ROFS, ErrorKind::Denied),
            (Errno::ACCESS, ErrorKind::Denied),
            (Errno::PERM, ErrorKind::Denied),
            (Errno::LOOP, ErrorKind::Foreign),
            (Errno::NOENT, ErrorKind::Misconfigured),
            (Errno::IO, ErrorKind::Unknown),
        ] {
            let error = Problem::from(io::Error::from(errno)).at(Path::new("/locks/a"));
            assert_eq!(error.kind(), kind, "{errno:?}");
            assert!(error.into_source().to_string().contains("/locks/a"));
        }
    }
}
