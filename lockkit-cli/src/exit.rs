//! The exit codes: those of `sysexits.h` where one fits, those of a shell for the command.

use std::io;

use lockkit::Error;
use rustix::process::{Signal, WaitStatus};

pub(crate) const OK: u8 = 0;
/// The lock is held, nothing was broken, a finding is an error, a check failed.
pub(crate) const NO: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const LOST: u8 = 70;
pub(crate) const IO: u8 = 74;
pub(crate) const CONFLICT: u8 = 75;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CONFIG: u8 = 78;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Whether the lock was not acquired because somebody else has it.
pub(crate) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Taken { .. } | Error::TimedOut { source: None, .. })
}

/// For a lock that was not acquired; `conflict` if somebody else has it.
pub(crate) fn of_error(error: &Error, conflict: u8) -> u8 {
    match error {
        error if is_conflict(error) => conflict,
        Error::Lost { .. } => LOST,
        Error::Denied(_) => DENIED,
        Error::Foreign(_)
        | Error::Misconfigured(_)
        | Error::Unsupported { .. }
        | Error::Config { .. } => CONFIG,
        Error::InvalidName { .. } => USAGE,
        // Unreachable, out of room, shut down: the service is not available.
        _ => UNAVAILABLE,
    }
}

/// For a program that could not be started.
pub(crate) fn of_start(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// Whether this is the code of a program that could not be started, or of a shell that says so.
pub(crate) fn means_not_started(code: u8) -> bool {
    matches!(code, NOT_EXECUTABLE | NOT_FOUND)
}

/// For a program that has ended.
pub(crate) fn of_status(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => truncate(code),
        (None, Some(signal)) => truncate(128 + signal),
        // It was waited for, so it has ended one way or the other.
        (None, None) => NOT_EXECUTABLE,
    }
}

/// For a signal that ended this program.
pub(crate) fn of_signal(signal: Signal) -> u8 {
    truncate(128 + signal.as_raw())
}

fn truncate(code: i32) -> u8 {
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}
