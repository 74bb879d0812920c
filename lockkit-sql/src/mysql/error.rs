//! What the errors of MySQL and MariaDB mean for a lock.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

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
    #[error("the driver was closed")]
    Closed,
    #[error("the server is read-only, as replicas are")]
    ReadOnly,
    #[error("the server has become read-only, as replicas are")]
    Demoted,
    #[error(
        "the server is a node of a Galera cluster, where locks of sessions are each node's own; use `hold=lease`"
    )]
    Galera,
    #[error("something in between gives each statement another session")]
    Pooled,
    #[error("{text}")]
    Found { kind: ErrorKind, text: Cow<'static, str> },
    #[error(transparent)]
    Client(Arc<sqlx::Error>),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let failure = Self::Client(Arc::new(error));
        match failure.number() {
            Some(NULL_IS_NO_VALUE) => Self::Demoted,
            _ => failure,
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
        // A replica may be promoted, or the host's name come to mean another server.
        !matches!(self, Self::ReadOnly)
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
        match &self {
            // Not a MySQL server at all, no TLS where it is demanded, or a certificate that is not
            // to be trusted.
            Self::Client(error) if is_about_the_set_up(error) => {
                DriverError::new(ErrorKind::Misconfigured, self)
            }
            _ => self.without_effect(),
        }
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
        matches!(self.number(), Some(DEADLOCK | CHANGED_SINCE_READ | COMMITTED_BY_ANOTHER_NODE))
    }

    /// Whether a row was kept locked for longer than the server waits. The transaction that the
    /// statement was part of goes on.
    pub(super) fn is_impatience(&self) -> bool {
        self.number() == Some(LOCK_WAIT_TIMEOUT)
    }

    /// Whether somebody broke the statement off.
    pub(super) fn is_interruption(&self) -> bool {
        self.number() == Some(1317)
    }

    /// Whether a right to a table is missing.
    pub(super) fn is_denial(&self) -> bool {
        matches!(self.number(), Some(1142 | 1143))
    }

    /// Whether the connection had ended, or ended during the request.
    pub(super) fn is_end(&self) -> bool {
        match self.number() {
            Some(number) => ENDED.contains(&number),
            None => {
                matches!(self, Self::Client(error) if matches!(**error, sqlx::Error::Io(_)))
            }
        }
    }

    /// Whether the connection is of no use any more.
    pub(super) fn spoils_the_connection(&self) -> bool {
        match self.number() {
            // A primary that was demoted keeps its connections, as does a node without its cluster.
            Some(number) => ENDED.contains(&number) || self.is_refused_write(),
            None => !matches!(self, Self::Found { .. }),
        }
    }

    /// Whether the server takes no writes.
    pub(super) fn is_refused_write(&self) -> bool {
        self.number().is_some_and(|number| NO_WRITES.contains(&number))
    }

    /// What the server's answer, or our own refusal, says about the request; none if there was no
    /// answer.
    fn known_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::NoAnswer(_) => None,
            Self::NoConnection { .. }
            | Self::Busy
            | Self::Unanswered
            | Self::Closed
            | Self::Demoted => Some(ErrorKind::Unreachable),
            Self::ReadOnly | Self::Galera | Self::Pooled => Some(ErrorKind::Misconfigured),
            Self::Found { kind, .. } => Some(*kind),
            Self::Client(error) => match &**error {
                sqlx::Error::Database(answer) => {
                    self.number().map(|number| kind_of_answer(number, answer.message()))
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

    /// The number of the server's answer.
    pub(super) fn number(&self) -> Option<u16> {
        match self {
            Self::Client(error) => {
                let answer = error.as_database_error()?;
                answer.try_downcast_ref().map(MySqlDatabaseError::number)
            }
            _ => None,
        }
    }
}

fn is_about_the_set_up(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

const DEADLOCK: u16 = 1213;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const CHANGED_SINCE_READ: u16 = 1020;
/// A node of group replication has rolled the transaction back in favour of another node's.
const COMMITTED_BY_ANOTHER_NODE: u16 = 3101;

/// Too many connections: in all, of the user, or of the user within an hour; or too many threads, or
/// prepared statements.
const FULL: [u16; 5] = [1040, 1203, 1226, 1135, 1461];
/// A column was not to be NULL. Some users may write where no writes are allowed, and this is how our
/// statements fail there (`sql/renew.sql`); otherwise they have no such value.
const NULL_IS_NO_VALUE: u16 = 1048;
/// The server takes no writes: read-only in five ways, or a node outside its cluster.
pub(super) const NO_WRITES: [u16; 6] = [1290, 1792, 1836, 1036, 1874, 1047];
/// The server is shutting down, has ended the session or is offline, perhaps only since after the
/// commit; or a proxy has no server: MySQL Router says 2003 before it has sent anything and 2013
/// otherwise, ProxySQL says 9001.
pub(super) const ENDED: [u16; 8] = [1053, 1927, 3032, 3169, 4031, 2003, 2013, 9001];

/// What an answer with that number means
/// (<https://dev.mysql.com/doc/mysql-errors/9.0/en/server-error-reference.html>,
/// <https://mariadb.com/kb/en/mariadb-error-code-reference/>). A statement that failed has done
/// nothing.
fn kind_of_answer(number: u16, message: &str) -> ErrorKind {
    match number {
        // The session was idle for too long, or a router had not sent anything: no request was
        // heard.
        4031 | 2003 => ErrorKind::Unreachable,
        number if ENDED.contains(&number) => ErrorKind::Unknown,
        number if FULL.contains(&number) || NO_WRITES.contains(&number) => ErrorKind::Unreachable,
        // In the course of a commit, or after it: for want of a disk, or because of a plugin.
        1180 | 3100 => ErrorKind::Unknown,
        // Cancelled, or stopped by a limit that the administrator has set.
        DEADLOCK
        | LOCK_WAIT_TIMEOUT
        | CHANGED_SINCE_READ
        | COMMITTED_BY_ANOTHER_NODE
        | 1317
        | 1969
        | 3024 => ErrorKind::Unreachable,
        // Too many transactions, a table that was opened anew, or a server that is not available for
        // now.
        1637 | 1615 | 3168 => ErrorKind::Unreachable,
        // No such user, a wrong password, the wrong host, a missing right, a session of another user, a
        // locked account, or a password that has to be renewed.
        1044 | 1045 | 1095 | 1129 | 1130 | 1142 | 1143 | 1227 | 1370 | 1698 | 1820 | 1862
        | 3118 | 4151 => ErrorKind::Denied,
        // A table or column that is not there, or not ours.
        1050 | 1054 | 1136 | 1146 | 1364 => ErrorKind::Foreign,
        // A token is the one number that can grow too large.
        1264 | 1690 => ErrorKind::Capacity,
        // Disk, memory, table space, lock table, a file that cannot be written.
        1021 | 1026 | 1037 | 1038 | 1041 | 1114 | 1206 => ErrorKind::Capacity,
        // Whatever the storage engine says.
        1030 if says_disk_full(message) => ErrorKind::Capacity,
        _ => ErrorKind::Misconfigured,
    }
}

/// Whether one of the numbers in a text is that of a full disk, in whatever language the rest is.
fn says_disk_full(text: &str) -> bool {
    text.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == "28")
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ErrorKind;

    use super::{Failure, kind_of_answer};

    #[test]
    fn answers_of_the_server_have_their_kind() {
        for (number, meaning, expected) in [
            (1020, "record has changed since last read", ErrorKind::Unreachable),
            (1021, "disk full", ErrorKind::Capacity),
            (1040, "too many connections", ErrorKind::Unreachable),
            (1044, "no right to the database", ErrorKind::Denied),
            (1045, "wrong password", ErrorKind::Denied),
            (1047, "a node outside its cluster", ErrorKind::Unreachable),
            (1049, "no such database", ErrorKind::Misconfigured),
            (1053, "shutting down", ErrorKind::Unknown),
            (1054, "no such column", ErrorKind::Foreign),
            (1095, "a session of another user", ErrorKind::Denied),
            (1142, "missing right", ErrorKind::Denied),
            (1146, "no such table", ErrorKind::Foreign),
            (1205, "row kept locked", ErrorKind::Unreachable),
            (1213, "deadlock", ErrorKind::Unreachable),
            (1026, "error writing a file", ErrorKind::Capacity),
            (1030, "storage engine", ErrorKind::Misconfigured),
            (1036, "table is read-only", ErrorKind::Unreachable),
            (1135, "no thread", ErrorKind::Unreachable),
            (1180, "error during the commit", ErrorKind::Unknown),
            (1290, "read-only", ErrorKind::Unreachable),
            (1317, "cancelled", ErrorKind::Unreachable),
            (1461, "too many prepared statements", ErrorKind::Unreachable),
            (1615, "statement has to be prepared anew", ErrorKind::Unreachable),
            (1637, "too many transactions", ErrorKind::Unreachable),
            (1665, "a binary log of statements", ErrorKind::Misconfigured),
            (1690, "token used up", ErrorKind::Capacity),
            (1874, "InnoDB is read-only", ErrorKind::Unreachable),
            (1927, "session ended by the administrator", ErrorKind::Unknown),
            (2003, "a router that reaches no server", ErrorKind::Unreachable),
            (2013, "a router that lost its server", ErrorKind::Unknown),
            (3032, "offline", ErrorKind::Unknown),
            (3100, "hook of a plugin failed", ErrorKind::Unknown),
            (3101, "rolled back for another node's transaction", ErrorKind::Unreachable),
            (3168, "not available", ErrorKind::Unreachable),
            (4031, "session ended since it was idle", ErrorKind::Unreachable),
            (9001, "a proxy that reached no server in time", ErrorKind::Unknown),
            (9999, "anything else", ErrorKind::Misconfigured),
        ] {
            assert_eq!(kind_of_answer(number, meaning), expected, "{number}: {meaning}");
        }
    }

    #[test]
    fn a_disk_that_is_full_is_told_from_what_else_a_storage_engine_says() {
        for (text, expected) in [
            ("Got error 28 - 'No space left on device' from storage engine", ErrorKind::Capacity),
            (
                "Got error 28 \"No space left on device\" from storage engine InnoDB",
                ErrorKind::Capacity,
            ),
            ("Fehler 28 (Speicher-Engine)", ErrorKind::Capacity),
            ("Got error 128 from storage engine", ErrorKind::Misconfigured),
        ] {
            assert_eq!(kind_of_answer(1030, text), expected, "{text}");
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
