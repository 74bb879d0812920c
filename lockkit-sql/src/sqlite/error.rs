//! What SQLite's errors mean for a lock.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use lockkit_core::driver::{DriverError, ErrorKind, filesystem};

/// What went wrong with the database.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Client(#[from] sqlx::Error),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("{text}")]
    Found { kind: ErrorKind, text: Cow<'static, str> },
}

impl Problem {
    /// Something about the database itself.
    pub(super) fn found(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Found { kind, text: text.into() }
    }

    /// Whether another connection had the database locked, so that nothing was done.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(BUSY | PROTOCOL))
    }

    /// Whether SQLite could not open a file, for a reason that it does not tell.
    pub(super) fn is_cannot_open(&self) -> bool {
        self.code() == Some(CANTOPEN)
    }

    /// Says where it happened.
    pub(super) fn at(self, path: &Path) -> DriverError {
        DriverError::new(self.kind(), InDatabase { path: path.into(), problem: self })
    }

    pub(super) fn kind(&self) -> ErrorKind {
        let code = match self {
            Self::Found { kind, .. } => return *kind,
            Self::System(error) => {
                return filesystem::error_kind(error).unwrap_or(ErrorKind::Misconfigured);
            }
            Self::Client(_) if self.extended_code() == Some(IOERR_SHMSIZE) => {
                return ErrorKind::Capacity;
            }
            Self::Client(_) => self.code(),
        };
        match code {
            Some(BUSY | PROTOCOL) => ErrorKind::Unreachable,
            Some(PERM | READONLY | AUTH) => ErrorKind::Denied,
            // The one constraint that a request can break is the one against a token beyond the
            // largest integer.
            Some(NOMEM | FULL | CONSTRAINT) => ErrorKind::Capacity,
            Some(CANTOPEN) => ErrorKind::Misconfigured,
            // Tables or columns are not ours, or the pages make no sense.
            Some(ERROR | CORRUPT | NOTADB | MISMATCH) => ErrorKind::Foreign,
            Some(_) => ErrorKind::Unknown,
            None => match self {
                Self::Client(sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_)) => {
                    ErrorKind::Foreign
                }
                Self::Client(sqlx::Error::Configuration(_)) => ErrorKind::Misconfigured,
                _ => ErrorKind::Unknown,
            },
        }
    }

    /// The primary result code (<https://www.sqlite.org/rescode.html>).
    fn code(&self) -> Option<i32> {
        self.extended_code().map(|extended| extended & 0xff)
    }

    fn extended_code(&self) -> Option<i32> {
        let Self::Client(sqlx::Error::Database(error)) = self else { return None };
        error.code()?.parse().ok()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("database {}", path.display())]
struct InDatabase {
    path: PathBuf,
    #[source]
    problem: Problem,
}

const ERROR: i32 = 1;
const PERM: i32 = 3;
const BUSY: i32 = 5;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const CONSTRAINT: i32 = 19;
const MISMATCH: i32 = 20;
const AUTH: i32 = 23;
const NOTADB: i32 = 26;
/// The shared-memory file cannot be made longer.
const IOERR_SHMSIZE: i32 = 4874;
