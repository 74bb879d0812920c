//! What PostgreSQL's errors mean for a lock.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::seats::{Failing, NoSeat};

/// What went wrong between us and the server.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("no connection within {limit:?}")]
    NoConnection {
        limit: Duration,
        #[source]
        last: Option<Box<Failure>>,
    },
    #[error("all connections are in use by earlier requests")]
    Busy,
    #[error("the server does not answer earlier requests")]
    Unanswered,
    #[error("the connection broke")]
    Broken,
    #[error("the driver was closed")]
    Closed,
    #[error("the server is a standby, which takes no writes")]
    Standby,
    #[error("no writes are taken: default_transaction_read_only is on")]
    ReadOnly,
    #[error("the server takes no writes any more")]
    Demoted,
    #[error(
        "a pooler that gives each transaction another session stands before the server; connect to the server itself, or let the pooler pool sessions"
    )]
    Pooled,
    #[error("{text}")]
    Found { kind: ErrorKind, text: Cow<'static, str> },
    #[error("{}", said(.0))]
    Client(Arc<sqlx::Error>),
}

/// The client's own text adds the line of the server's source code.
fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(answer) => {
            format!("error returned from database: {}", answer.message())
        }
        other => other.to_string(),
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            // Said where a statement was prepared on a session other than the one it is run on.
            sqlx::Error::Database(answer)
                if matches!(answer.code().as_deref(), Some("26000" | "42P05")) =>
            {
                Self::Pooled
            }
            _ => Self::Client(Arc::new(error)),
        }
    }
}

impl From<NoSeat> for Failure {
    fn from(reason: NoSeat) -> Self {
        match reason {
            NoSeat::Busy => Self::Busy,
            NoSeat::Closed => Self::Closed,
        }
    }
}

impl Failing for Failure {
    fn no_connection(limit: Duration, last: Option<Self>) -> Self {
        Self::NoConnection { limit, last: last.map(Box::new) }
    }

    fn is_lasting(&self) -> bool {
        // A standby may be promoted, or the host's name come to mean another server.
        !matches!(self, Self::Standby | Self::ReadOnly)
            && self.known_kind().is_some_and(|kind| !kind.is_transient())
    }
}

impl Failure {
    /// Something about the database itself.
    pub(super) fn found(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Found { kind, text: text.into() }
    }

    /// The error of an attempt to connect: nothing was asked for yet.
    pub(super) fn while_connecting(self) -> DriverError {
        let kind = match &self {
            Self::Client(error) if is_dismissal(error) => ErrorKind::Unreachable,
            // Not a PostgreSQL server at all, or no TLS where it is demanded.
            Self::Client(error)
                if matches!(**error, sqlx::Error::Protocol(_) | sqlx::Error::Tls(_)) =>
            {
                ErrorKind::Misconfigured
            }
            // A certificate that is not to be trusted.
            Self::Client(error) if is_invalid_data(error) => ErrorKind::Misconfigured,
            // Some poolers use this code for all that they say: here for a setting that they do not
            // pass on.
            other if other.is_violation("unsupported startup parameter") => {
                ErrorKind::Misconfigured
            }
            _ => return self.without_effect(),
        };
        DriverError::new(kind, self)
    }

    /// The error of a request: what was not answered may have been carried out.
    pub(super) fn of_a_request(self) -> DriverError {
        DriverError::new(self.known_kind().unwrap_or(ErrorKind::Unknown), self)
    }

    /// The error of a request that only reads.
    pub(super) fn without_effect(self) -> DriverError {
        self.of_a_request().without_effect()
    }

    /// Whether the request may have been carried out.
    pub(super) fn leaves_a_doubt(&self) -> bool {
        matches!(self.known_kind(), None | Some(ErrorKind::Unknown))
    }

    /// Whether the request met another one, so that nothing was done and doing it again helps.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01"))
    }

    /// Whether the connection had ended, or ended during the request.
    pub(super) fn is_end(&self) -> bool {
        match self.answer() {
            Some(answer) => answer.severity() != PgSeverity::Error,
            None => {
                matches!(self, Self::Client(error) if matches!(**error, sqlx::Error::Io(_)))
            }
        }
    }

    /// Whether the connection is of no use any more.
    pub(super) fn spoils_the_connection(&self) -> bool {
        match self.answer() {
            None => true,
            Some(answer) => spoils(answer.code(), answer.severity()),
        }
    }

    /// Whether the server takes no writes.
    pub(super) fn is_refused_write(&self) -> bool {
        self.code() == Some(READ_ONLY)
    }

    /// What the server's answer, or our own refusal, says about the request; none if there was no
    /// answer.
    fn known_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::NoAnswer(_) | Self::Broken => None,
            Self::NoConnection { .. }
            | Self::Busy
            | Self::Unanswered
            | Self::Closed
            | Self::Demoted => Some(ErrorKind::Unreachable),
            Self::Standby | Self::ReadOnly | Self::Pooled => Some(ErrorKind::Misconfigured),
            Self::Found { kind, .. } => Some(*kind),
            Self::Client(error) => match &**error {
                sqlx::Error::Database(_) => {
                    self.answer().map(|answer| kind_of_answer(answer.code(), answer.severity()))
                }
                sqlx::Error::Configuration(_) => Some(ErrorKind::Misconfigured),
                sqlx::Error::RowNotFound
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_) => Some(ErrorKind::Foreign),
                _ => None,
            },
        }
    }

    fn is_violation(&self, what: &str) -> bool {
        self.answer().is_some_and(|answer| {
            answer.code() == PROTOCOL_VIOLATION && answer.message().starts_with(what)
        })
    }

    fn code(&self) -> Option<&str> {
        self.answer().map(PgDatabaseError::code)
    }

    pub(super) fn answer(&self) -> Option<&PgDatabaseError> {
        match self {
            Self::Client(error) => error.as_database_error()?.try_downcast_ref(),
            _ => None,
        }
    }
}

/// Whether the other end did not get as far as saying whether it has TLS: it closed the connection, as
/// what stands before a server that is away, which the client reads as a zero; or it is a server that
/// has no process for another connection, and says so by an error (`E`).
fn is_dismissal(error: &sqlx::Error) -> bool {
    const UNEXPECTED: &str = "unexpected response from SSLRequest: ";
    let sqlx::Error::Protocol(text) = error else { return false };
    let answer = text.strip_prefix(UNEXPECTED);
    answer.is_some_and(|answer| ["0x00", "0x45"].iter().any(|byte| answer.starts_with(byte)))
}

/// The TLS library reports what it does not accept as this kind of error.
fn is_invalid_data(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData)
}

const PROTOCOL_VIOLATION: &str = "08P01";
/// A transaction that takes no writes.
const READ_ONLY: &str = "25006";
/// A transaction in which a statement has failed before.
const FAILED_TRANSACTION: &str = "25P02";

/// Whether the connection is of no use after an answer with this code.
fn spoils(code: &str, severity: PgSeverity) -> bool {
    match code {
        // A primary that was demoted keeps its connections.
        READ_ONLY => true,
        // Nothing that we leave open: it may come from a pooler, and nobody would end it.
        FAILED_TRANSACTION => true,
        _ => severity != PgSeverity::Error,
    }
}

/// What an answer with this code (<https://www.postgresql.org/docs/current/errcodes-appendix.html>)
/// means. A statement that failed has done nothing.
fn kind_of_answer(code: &str, severity: PgSeverity) -> ErrorKind {
    match code {
        // The server crashes, perhaps since it could not write a commit, and may find that in its log
        // afterwards.
        _ if severity == PgSeverity::Panic => ErrorKind::Unknown,
        // The server is shutting down, or the administrator has ended the session: perhaps after
        // the commit.
        "57P01" | "57P02" => ErrorKind::Unknown,
        // Cancelled, stopped by a time-out (the one for transactions is PostgreSQL 17's), starting
        // up, no connection left, a row that somebody keeps locked, requests that met, a server
        // that is a standby by now, a transaction that we did not begin: all of these pass.
        "57014" | "25P04" | "57P03" | "57P05" | "53300" | "55P03" | "40001" | "40P01"
        | READ_ONLY | FAILED_TRANSACTION => ErrorKind::Unreachable,
        "42501" => ErrorKind::Denied,
        // A table, column or function that is not there, or not ours.
        "42P01" | "42703" | "42883" | "42804" | "42P07" | "42723" => ErrorKind::Foreign,
        // A token is the one number that can grow too large.
        "22003" => ErrorKind::Capacity,
        _ => match &code[..2.min(code.len())] {
            // The connection, or the server's disk.
            "08" | "58" => ErrorKind::Unknown,
            "28" => ErrorKind::Denied,
            "53" | "54" => ErrorKind::Capacity,
            // What connecting asks for: a feature, a value, a database, the name of a setting.
            "0A" | "22" | "3D" | "42" => ErrorKind::Misconfigured,
            // It ends the session, whatever it is: poolers have codes of their own.
            _ if severity != PgSeverity::Error => ErrorKind::Unknown,
            _ => ErrorKind::Misconfigured,
        },
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ErrorKind;

    use sqlx::postgres::PgSeverity;

    use super::{Failure, kind_of_answer, spoils};

    #[test]
    fn answers_of_the_server_have_their_kind() {
        for (code, meaning, expected) in [
            ("28P01", "wrong password", ErrorKind::Denied),
            ("28000", "no such role, or not from there", ErrorKind::Denied),
            ("42501", "missing right", ErrorKind::Denied),
            ("3D000", "no such database", ErrorKind::Misconfigured),
            ("53100", "disk full", ErrorKind::Capacity),
            ("53200", "out of memory", ErrorKind::Capacity),
            ("53300", "too many connections", ErrorKind::Unreachable),
            ("54000", "queue of news full", ErrorKind::Capacity),
            ("22003", "token used up", ErrorKind::Capacity),
            ("25006", "demoted to a standby", ErrorKind::Unreachable),
            ("25P02", "a transaction that has failed", ErrorKind::Unreachable),
            ("25P04", "transaction took longer than it may", ErrorKind::Unreachable),
            ("40001", "serialization failure", ErrorKind::Unreachable),
            ("40P01", "deadlock", ErrorKind::Unreachable),
            ("42P01", "no such table", ErrorKind::Foreign),
            ("42883", "no such function", ErrorKind::Foreign),
            ("55P03", "row kept locked", ErrorKind::Unreachable),
            ("57014", "cancelled", ErrorKind::Unreachable),
            ("57P01", "session ended by the administrator", ErrorKind::Unknown),
            ("57P03", "starting up", ErrorKind::Unreachable),
            ("08006", "connection failure", ErrorKind::Unknown),
            ("58030", "error of the disk", ErrorKind::Unknown),
            ("XX000", "internal error", ErrorKind::Misconfigured),
            ("", "no code at all", ErrorKind::Misconfigured),
        ] {
            assert_eq!(kind_of_answer(code, PgSeverity::Error), expected, "{code}: {meaning}");
        }
    }

    #[test]
    fn what_ends_the_session_has_its_kind() {
        for (code, meaning, expected) in [
            ("0A000", "unknown protocol", ErrorKind::Misconfigured),
            ("22023", "no such value of a setting", ErrorKind::Misconfigured),
            ("28P01", "wrong password", ErrorKind::Denied),
            ("3D000", "no such database", ErrorKind::Misconfigured),
            ("42704", "no such setting", ErrorKind::Misconfigured),
            ("53300", "too many connections", ErrorKind::Unreachable),
            ("57P04", "the database is gone", ErrorKind::Unknown),
            ("58000", "a pooler without a server", ErrorKind::Unknown),
            ("XX000", "a pooler without a server", ErrorKind::Unknown),
            ("", "no code at all", ErrorKind::Unknown),
        ] {
            assert_eq!(kind_of_answer(code, PgSeverity::Fatal), expected, "{code}: {meaning}");
        }
    }

    /// By the time that the disk is full, the commit may be on it.
    #[test]
    fn a_server_that_crashes_leaves_a_doubt() {
        for code in ["53100", "53200", "58030", "XX000"] {
            assert_eq!(kind_of_answer(code, PgSeverity::Panic), ErrorKind::Unknown, "{code}");
        }
    }

    #[test]
    fn some_answers_spoil_the_connection() {
        for code in ["25006", "25P02"] {
            assert!(spoils(code, PgSeverity::Error), "{code}");
        }
        assert!(!spoils("55P03", PgSeverity::Error));
        for severity in [PgSeverity::Fatal, PgSeverity::Panic] {
            assert!(spoils("55P03", severity));
        }
    }

    #[test]
    fn what_was_not_answered_is_unknown_unless_it_only_read() {
        let broken = || {
            let error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
            Failure::from(sqlx::Error::from(error))
        };
        assert_eq!(broken().of_a_request().kind(), ErrorKind::Unknown);
        assert_eq!(broken().without_effect().kind(), ErrorKind::Unreachable);
        assert_eq!(broken().while_connecting().kind(), ErrorKind::Unreachable);
        assert!(broken().spoils_the_connection());
    }
}
