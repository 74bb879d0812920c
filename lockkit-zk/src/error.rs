//! What ZooKeeper's errors mean for a lock.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use zookeeper_client::Error;

use crate::endpoint::Bounds;

/// What went wrong between us and the servers.
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
    #[error("the driver was closed")]
    Closed,
    #[error(
        "the longest session that the server grants is {granted:?}, and its tick is {tick:?}: it takes three ticks"
    )]
    ShortSessions { granted: Duration, tick: Duration },
    #[error(
        "the servers do not tell their tick, and sessions of {0} follow from none: give `tick` in the URL"
    )]
    UnknownTick(Bounds),
    #[error("no answer to how long sessions are")]
    Probe(#[source] Arc<io::Error>),
    #[error("no agreement on an encrypted connection: {0}")]
    Tls(String),
    #[error("`{0}` is no node of a lock")]
    Foreign(String),
    #[error("the node was removed by somebody else")]
    Removed,
    #[error("the answer came when the place had been given up")]
    GivenUp,
    #[error(transparent)]
    Client(#[from] Error),
}

impl Failure {
    /// The error of an attempt to connect, or of a request that changes nothing.
    pub(crate) fn without_effect(self) -> DriverError {
        self.of_a_request().without_effect()
    }

    /// The error of a request: what was not answered may have been carried out.
    pub(crate) fn of_a_request(self) -> DriverError {
        DriverError::new(self.known_kind().unwrap_or(ErrorKind::Unknown), self)
    }

    /// The error of a request that leaves something behind.
    pub(crate) fn with_traces(self) -> DriverError {
        DriverError::new(ErrorKind::Unknown, self)
    }

    /// Whether waiting for another session does not help.
    pub(crate) fn is_lasting(&self) -> bool {
        self.known_kind().is_some_and(|kind| !kind.is_transient())
    }

    /// Whether the server has answered the request.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Self::Client(error) => known_kind(error).is_some(),
            _ => false,
        }
    }

    /// Whether a majority has agreed on the answer, as it has on the answer to a write that was
    /// carried out.
    pub(crate) fn is_agreed(&self) -> bool {
        use Error::{BadVersion, NoAuth, NoNode, NodeExists};
        matches!(self, Self::Client(NoNode | NoAuth | NodeExists | BadVersion))
    }

    /// Whether the server says that there is no such node.
    pub(crate) fn is_no_node(&self) -> bool {
        matches!(self, Self::Client(Error::NoNode))
    }

    /// What the answer, or our own refusal, says about the request; `None` if there was no answer.
    fn known_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::NoAnswer(_) | Self::Probe(_) | Self::Removed | Self::GivenUp => None,
            Self::NoConnection { .. } | Self::Closed => Some(ErrorKind::Unreachable),
            Self::ShortSessions { .. } | Self::UnknownTick(_) | Self::Tls(_) => {
                Some(ErrorKind::Misconfigured)
            }
            Self::Foreign(_) => Some(ErrorKind::Foreign),
            Self::Client(error) => known_kind(error),
        }
    }
}

/// What a server that has local sessions, and does not make them global, answers to the creation of
/// an ephemeral node.
const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;

/// What a server's answer says about the request that it answers. Whatever ends a connection goes
/// by many names, so an error that is not known to be an answer counts as none.
fn known_kind(error: &Error) -> Option<ErrorKind> {
    Some(match error {
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => ErrorKind::Denied,
        // Removed by somebody else, or the leader is changing: asking again helps.
        Error::NoNode | Error::Throttled | Error::NotReadOnly | Error::SessionMoved => {
            ErrorKind::Unreachable
        }
        Error::QuotaExceeded => ErrorKind::Capacity,
        Error::NoChildrenForEphemerals => ErrorKind::Foreign,
        Error::NodeExists | Error::NotEmpty | Error::BadVersion => ErrorKind::Foreign,
        Error::Unimplemented | Error::MarshallingError | Error::BadArguments(_) => {
            ErrorKind::Misconfigured
        }
        Error::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => ErrorKind::Misconfigured,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ErrorKind;
    use zookeeper_client::Error;

    use super::Failure;

    #[test]
    fn answers_of_the_server_have_their_kind() {
        for (error, kind) in [
            (Error::NoAuth, ErrorKind::Denied),
            (Error::Throttled, ErrorKind::Unreachable),
            (Error::QuotaExceeded, ErrorKind::Capacity),
            (Error::NoChildrenForEphemerals, ErrorKind::Foreign),
            (Error::Unimplemented, ErrorKind::Misconfigured),
            (Error::UnexpectedErrorCode(-120), ErrorKind::Misconfigured),
        ] {
            let failure = Failure::from(error);
            assert!(failure.is_answer(), "{failure}");
            assert_eq!(failure.of_a_request().kind(), kind);
        }
    }

    #[test]
    fn what_was_not_answered_is_unknown() {
        for error in [
            Error::ConnectionLoss,
            Error::Timeout,
            Error::SessionExpired,
            Error::ClientClosed,
            Error::UnexpectedErrorCode(-4),
            Error::UnexpectedError("no response".into()),
        ] {
            let failure = Failure::from(error);
            assert!(!failure.is_answer(), "{failure}");
            assert!(!failure.is_agreed(), "{failure}");
            assert_eq!(failure.clone().of_a_request().kind(), ErrorKind::Unknown);
            assert_eq!(failure.without_effect().kind(), ErrorKind::Unreachable);
        }
    }
}
