use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use redis::RedisError;

use crate::spares;

/// What went wrong between us and the server.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("no connection within {limit:?}")]
    NoConnection {
        limit: Duration,
        #[source]
        last: Option<Box<Failure>>,
    },
    #[error("no turn in time, within {0:?}, as {most} requests wait for replicas", most = spares::MOST)]
    NoTurn(Duration),
    #[error("the server does not answer {0}")]
    Mute(&'static str),
    #[error("the server hung up without an answer")]
    HungUp,
    #[error("the connection broke")]
    Broken,
    #[error("no TLS connection: {0}")]
    Tls(String),
    #[error("refused with the certificates that there were, and there are no others: {problem}")]
    OldFiles {
        problem: String,
        #[source]
        failure: Box<Failure>,
    },
    #[error("the driver was closed")]
    Closed,
    #[error("the server is a replica, which takes no writes")]
    Replica,
    #[error("the server is a {is}, not a {wanted}")]
    Mode { is: &'static str, wanted: &'static str },
    #[error("the server does not take a password")]
    NoAuth,
    #[error("the server has a password for all, and knows nobody by name")]
    NoUsers,
    #[error("the server is in another run than it was")]
    Restarted,
    #[error("no such database: {0}")]
    Database(RedisError),
    #[error("another server has become the primary")]
    Deposed,
    #[error("the connection for requests was made anew")]
    MadeAnew,
    #[error("the slot has gone to another member")]
    SlotLeft,
    #[error("no sentinel says where the primary of `{group}` is")]
    NoPrimary {
        group: String,
        #[source]
        last: Option<Box<Failure>>,
    },
    #[error("no sentinel knows `{0}`")]
    UnknownGroup(String),
    #[error("nobody is known to have the slot")]
    NoOwner,
    #[error("members of the cluster send the request on and on")]
    SentOn(#[source] RedisError),
    #[error("a cluster is used from Redis 7 on")]
    OldCluster,
    #[error("a cluster has no one run")]
    NoOneRun,
    #[error("no connection of its own for a request that waits for replicas")]
    NoSpare(#[source] Box<Failure>),
    #[error(transparent)]
    Redis(#[from] RedisError),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Redis(error.into())
    }
}

impl Failure {
    /// The error of an attempt to connect, or to find out what is there: nothing was asked for yet.
    pub(crate) fn while_connecting(self) -> DriverError {
        let kind = match &self {
            Self::Redis(error) if error.kind() == redis::ErrorKind::Parse => {
                ErrorKind::Misconfigured
            }
            other => other.known_kind().unwrap_or(ErrorKind::Unreachable),
        };
        DriverError::new(kind, self)
    }

    /// The error of a call: what was not answered may have been carried out.
    pub(crate) fn of_a_call(self) -> DriverError {
        DriverError::new(self.known_kind().unwrap_or(ErrorKind::Unknown), self)
    }

    /// The error of waiting for replicas: what was written may or may not be there.
    pub(crate) fn of_a_wait(self) -> DriverError {
        let kind = match self.known_kind() {
            Some(kind @ ErrorKind::Denied) => kind,
            Some(kind) if self.is_unknown_command() => kind,
            _ => ErrorKind::Unknown,
        };
        DriverError::new(kind, self)
    }

    /// What became of a request that was sent. If the connection failed, nobody knows, whatever the
    /// server last said about the connection.
    pub(crate) fn of_what_was_sent(error: RedisError) -> Self {
        match is_fatal_alert(&error) {
            true => Self::Broken,
            false => Self::Redis(error),
        }
    }

    /// Whether waiting for another connection does not help.
    pub(crate) fn is_lasting(&self) -> bool {
        // A replica may become a primary, or the host's name come to mean another server.
        !matches!(self, Self::Replica) && self.known_kind().is_some_and(|kind| !kind.is_transient())
    }

    /// Whether the server lacks what it was asked to do, for good.
    fn is_unknown_command(&self) -> bool {
        let is = |error: &RedisError| {
            let detail = error.detail().unwrap_or_default();
            code(error) == Some("ERR") && detail.starts_with("unknown command")
        };
        matches!(self, Self::Redis(error) if is(error))
    }

    /// Whether the server has named another one to ask.
    pub(crate) fn is_redirection(&self) -> bool {
        matches!(self, Self::Redis(error) if error.redirect_node().is_some())
    }

    /// Whether a script has emptied a key whose slot is being moved: it then counted as moved
    /// already, for the same script too. No script has touched a hold before it comes to that. It
    /// has dropped places of the dead or of the owner who asks, or noted until when that one waits.
    pub(crate) fn is_about_a_lost_key(&self) -> bool {
        matches!(self, Self::Redis(error) if is_about_a_lost_key(error))
    }

    /// Whether the connection is no good for another call, although it answers.
    pub(crate) fn spoils_the_connection(&self) -> bool {
        match self {
            // What keeps another connection from being made is no trouble of those that exist.
            Self::NoSpare(failure) => {
                matches!(**failure, Self::Replica | Self::Restarted)
                    || failure.spoils_the_connection()
            }
            // Only a replica says either.
            Self::Redis(error) => matches!(code(error), Some("READONLY" | "MASTERDOWN")),
            _ => false,
        }
    }

    /// Whether a request found the connection broken, or broke it.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Broken => true,
            Self::Redis(error) => error.kind() == redis::ErrorKind::Io,
            _ => false,
        }
    }

    /// Whether one of the two ends does not accept what the other shows.
    pub(crate) fn is_about_certificates(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::Redis(error) => is_fatal_alert(error),
            _ => false,
        }
    }

    /// Whether the server does not have the database that the URL names.
    pub(crate) fn is_about_the_database(&self) -> bool {
        matches!(self, Self::Database(_))
    }

    /// Whether a member of a cluster may be another than it was, or gone. What it answered to a
    /// request says no such thing, nor does a request that did not get its turn.
    pub(crate) fn is_about_the_member(&self) -> bool {
        match self {
            Self::NoTurn(_) => false,
            Self::Redis(_) => self.known_kind().is_none_or(|kind| kind == ErrorKind::Unreachable),
            _ => true,
        }
    }

    /// What the server's answer, or our own refusal, says about the request; `None` if there was no
    /// answer.
    fn known_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::NoAnswer(_)
            | Self::Mute(_)
            | Self::HungUp
            | Self::Broken
            | Self::Deposed
            | Self::MadeAnew
            | Self::SlotLeft => None,
            Self::NoAuth | Self::NoUsers => Some(ErrorKind::Denied),
            Self::NoConnection { .. }
            | Self::NoTurn(_)
            | Self::OldFiles { .. }
            | Self::Closed
            | Self::Restarted
            | Self::NoOwner
            | Self::SentOn(_) => Some(ErrorKind::Unreachable),
            Self::NoOneRun => Some(ErrorKind::Unsupported),
            Self::NoPrimary { last, .. } => {
                let kind = last.as_ref().and_then(|last| last.known_kind());
                Some(kind.unwrap_or(ErrorKind::Unreachable))
            }
            Self::NoSpare(failure) => Some(match &**failure {
                // A demoted primary: as if it had refused what was asked for.
                Self::Replica => ErrorKind::Unreachable,
                failure => failure.known_kind().unwrap_or(ErrorKind::Unreachable),
            }),
            Self::Replica
            | Self::Mode { .. }
            | Self::Database(_)
            | Self::UnknownGroup(_)
            | Self::Tls(_)
            | Self::OldCluster => Some(ErrorKind::Misconfigured),
            // What a server says about a client's certificate, after the client is done connecting.
            Self::Redis(error) if is_fatal_alert(error) => Some(ErrorKind::Denied),
            Self::Redis(error) => match error.kind() {
                redis::ErrorKind::Io | redis::ErrorKind::Parse => None,
                _ => Some(kind_of_answer(error)),
            },
        }
    }
}

/// Whether the server ended TLS and gave a reason.
fn is_fatal_alert(error: &RedisError) -> bool {
    error.to_string().contains("received fatal alert")
}

fn is_about_a_lost_key(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    code(error) == Some("ERR") && detail.contains("access a non local key")
}

fn kind_of_answer(error: &RedisError) -> ErrorKind {
    let detail = error.detail().unwrap_or_default();
    match code(error).unwrap_or_default() {
        // A demoted primary: its successor is found by connecting anew.
        "READONLY" | "MASTERDOWN" => ErrorKind::Unreachable,
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOREPLICAS" => ErrorKind::Unreachable,
        "ERR" if detail.starts_with("max number of clients") => ErrorKind::Unreachable,
        "ERR" if is_about_a_lost_key(error) => ErrorKind::Unreachable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => ErrorKind::Denied,
        // A password for a server that has none or, in Redis 5, a different one.
        "ERR" if detail.starts_with("AUTH ") || detail.starts_with("Client sent AUTH") => {
            ErrorKind::Denied
        }
        "ERR" if detail == "invalid password" => ErrorKind::Denied,
        "ERR" if detail.contains("The user executing the script can't") => ErrorKind::Denied,
        // Redis 7 puts `NOPERM` before it.
        "ERR" if detail.starts_with("ACL failure in script") => ErrorKind::Denied,
        "OOM" | "CAPACITY" => ErrorKind::Capacity,
        "WRONGTYPE" | "FOREIGN" => ErrorKind::Foreign,
        _ => ErrorKind::Misconfigured,
    }
}

/// The error as it is for a claim that can wait: a server that could not save takes no writes until
/// it has tried again, which it does by itself.
pub(crate) fn to_who_waits(error: DriverError) -> DriverError {
    let kind = error.kind();
    let source = error.into_source();
    let kind = match source.downcast_ref() {
        Some(Failure::Redis(error)) if code(error) == Some("MISCONF") => ErrorKind::Unreachable,
        _ => kind,
    };
    DriverError::new(kind, source)
}

/// The code of a server's error. For a command inside a script, Redis 6 wraps it:
/// `ERR Error running script (call to f_SHA): @user_script:LINE: WRONGTYPE Operation against ...`.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let is_code = |word: &&str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase());
    let inner = error
        .detail()
        .filter(|detail| detail.starts_with("Error running script"))
        .and_then(|detail| detail.split([' ', '-']).find(is_code));
    inner.or(error.code())
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ErrorKind;

    use super::Failure;

    fn answer(text: &str) -> Failure {
        let answer = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
        Failure::from(answer.extract_error().unwrap_err())
    }

    #[test]
    fn answers_of_the_server_have_their_kind() {
        const WRAPPED: &str = "ERR Error running script (call to f_0ab1): @user_script:12: ";
        for (text, expected) in [
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unreachable),
            ("BUSY Redis is busy running a script", ErrorKind::Unreachable),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unreachable),
            ("MASTERDOWN Link with MASTER is down and ...", ErrorKind::Unreachable),
            ("ERR max number of clients reached", ErrorKind::Unreachable),
            (
                "ERR Script attempted to access a non local key in a cluster node script: 0ab1",
                ErrorKind::Unreachable,
            ),
            ("NOAUTH Authentication required.", ErrorKind::Denied),
            ("ERR AUTH <password> called without any password configured", ErrorKind::Denied),
            ("DENIED Redis is running in protected mode because ...", ErrorKind::Denied),
            ("NOPERM this user has no permissions to run the 'evalsha' command", ErrorKind::Denied),
            ("ERR ACL failure in script: User me has no permissions to ...", ErrorKind::Denied),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Capacity),
            ("CAPACITY the fencing tokens of the bucket are used up", ErrorKind::Capacity),
            ("WRONGTYPE Operation against a key holding ...", ErrorKind::Foreign),
            ("FOREIGN the key of the lock holds something else", ErrorKind::Foreign),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Misconfigured),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Misconfigured),
            ("ERR unknown command 'EVALSHA'", ErrorKind::Misconfigured),
            (&format!("{WRAPPED}WRONGTYPE Operation against"), ErrorKind::Foreign),
            (&format!("{WRAPPED}@user_script: 12: -READONLY You"), ErrorKind::Unreachable),
        ] {
            assert_eq!(answer(text).of_a_call().kind(), expected, "{text}");
        }
    }

    #[test]
    fn who_has_which_slot_is_in_doubt_only_where_a_member_may_be_another() {
        let limit = std::time::Duration::from_secs(1);
        let cases = [
            (answer("OOM command not allowed when used memory > 'maxmemory'."), false),
            (answer("NOPERM this user has no permissions to run the 'evalsha' command"), false),
            (answer("FOREIGN the key of the lock holds something else"), false),
            (Failure::NoTurn(limit), false),
            (answer("CLUSTERDOWN The cluster is down"), true),
            (Failure::NoAnswer(limit), true),
            (Failure::Broken, true),
            (Failure::Mode { is: "single server", wanted: "node of a cluster" }, true),
        ];
        for (failure, expected) in cases {
            assert_eq!(failure.is_about_the_member(), expected, "{failure}");
        }
    }

    #[test]
    fn a_wait_that_has_begun_has_an_unknown_end() {
        for (text, expected) in [
            ("NOPERM this user has no permissions to run the 'wait' command", ErrorKind::Denied),
            ("ERR unknown command 'WAIT', with args beginning with:", ErrorKind::Misconfigured),
            ("UNBLOCKED force unblock from blocking operation", ErrorKind::Unknown),
            ("ERR WAIT cannot be used with replica instances.", ErrorKind::Unknown),
        ] {
            assert_eq!(answer(text).of_a_wait().kind(), expected, "{text}");
        }
    }

    #[test]
    fn who_gets_no_more_connections_keeps_those_it_has() {
        let no_spare = |failure| Failure::NoSpare(Box::new(failure)).spoils_the_connection();
        assert!(!no_spare(answer("ERR max number of clients reached")));
        assert!(!no_spare(Failure::Broken));
        assert!(no_spare(answer("READONLY You can't write against a read only replica.")));
        assert!(no_spare(Failure::Restarted));
    }

    #[test]
    fn a_demoted_primary_is_unreachable_for_who_waits_for_replicas_too() {
        let refused = Failure::NoSpare(Box::new(Failure::Replica));
        assert!(refused.spoils_the_connection() && !refused.is_lasting());
        assert_eq!(refused.of_a_call().kind(), ErrorKind::Unreachable);
    }

    #[test]
    fn what_was_not_answered_is_unknown() {
        let broken = redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(Failure::from(broken.clone()).of_a_call().kind(), ErrorKind::Unknown);
        assert_eq!(Failure::from(broken).while_connecting().kind(), ErrorKind::Unreachable);
        // While a connection is made, this says that a certificate is refused; on one that stands,
        // it says nothing about what was sent.
        let alert = || redis::RedisError::from(std::io::Error::other("received fatal alert: X"));
        assert_eq!(Failure::from(alert()).while_connecting().kind(), ErrorKind::Denied);
        let sent = Failure::of_what_was_sent(alert());
        assert_eq!(sent.of_a_call().kind(), ErrorKind::Unknown);
    }
}
