//! What etcd's errors mean for a lock.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{DriverError, ErrorKind};
use tonic::{Code, ConnectError};

/// What went wrong between us and the cluster.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("no connection within {0:?}")]
    NotConnected(Duration),
    #[error("the driver was closed")]
    Closed,
    #[error("the member {member} belongs to another cluster than that which was connected to")]
    OtherCluster { member: String },
    #[error("{0}")]
    Foreign(&'static str),
    #[error("the place in the queue was lost; it can be taken again")]
    Displaced,
    #[error("the stream ended")]
    Ended,
    #[error("it could not be connected to a moment ago")]
    LeftAlone(#[source] Box<Failure>),
    #[error("the server hung up without an answer, as one does that {habit}")]
    HungUp {
        habit: &'static str,
        #[source]
        failure: Box<Failure>,
    },
    #[error("etcd lets nothing be watched: {0}")]
    WatchRefused(String),
    #[error(transparent)]
    Client(Arc<etcd_client::Error>),
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Self {
        Self::Client(Arc::new(error))
    }
}

impl Failure {
    /// The same, with a likely cause where whoever connected, with TLS or without, was hung up on.
    pub(crate) fn explained(self, with_tls: bool) -> Self {
        let habit = match with_tls {
            true => "speaks no TLS (`etcd:`), or wants another certificate",
            false => "wants TLS (`etcds:`)",
        };
        match self.is_hung_up() {
            true => Self::HungUp { habit, failure: Box::new(self) },
            false => self,
        }
    }

    /// The error of an attempt to connect: nothing was asked for yet.
    pub(crate) fn while_connecting(self) -> DriverError {
        match self.kind() {
            // A certificate that is not to be trusted, or not etcd at all.
            ErrorKind::Unreachable if self.is_about_tls() => {
                DriverError::new(ErrorKind::Misconfigured, self)
            }
            _ => self.without_effect(),
        }
    }

    /// The error of a request: what was not answered may have been carried out.
    pub(crate) fn of_a_request(self) -> DriverError {
        DriverError::new(self.kind(), self)
    }

    /// The error of a request that only reads.
    pub(crate) fn without_effect(self) -> DriverError {
        self.of_a_request().without_effect()
    }

    /// Whether another member may do better.
    pub(crate) fn is_about_the_member(&self) -> bool {
        match self {
            Self::NoAnswer(_) | Self::NotConnected(_) | Self::Ended | Self::LeftAlone(_) => true,
            // All members agree on which leases there are.
            Self::Client(_) => self.kind().is_transient() && !self.is_a_lost_lease(),
            _ => false,
        }
    }

    /// Whether the members may do better when they are asked once more.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_about_the_member() && !self.is_about_tls()
    }

    /// Whether the request may have been carried out, although this is an answer to it.
    pub(crate) fn may_be_carried_out(&self) -> bool {
        // Another cluster may have the lease as well, if it was restored from a snapshot of ours.
        self.is_about_space() || matches!(self, Self::OtherCluster { .. })
    }

    /// Whether there is no room. To the request that fills the space, etcd gives this answer after
    /// having carried it out (`quotaApplierV3` in
    /// <https://github.com/etcd-io/etcd/blob/main/server/etcdserver/apply/apply.go>).
    pub(crate) fn is_about_space(&self) -> bool {
        self.status().is_some_and(|(code, message)| {
            code == Code::ResourceExhausted && message.ends_with("database space exceeded")
        })
    }

    /// Whether the lease of the request is over.
    pub(crate) fn is_a_lost_lease(&self) -> bool {
        self.status().is_some_and(|(code, _)| code == Code::NotFound)
    }

    /// Whether the user may not do this, whatever else it may do.
    pub(crate) fn is_a_missing_right(&self) -> bool {
        self.status().is_some_and(|(code, _)| code == Code::PermissionDenied)
    }

    /// Whether the server allows fewer operations in one request (`--max-txn-ops`).
    pub(crate) fn is_about_too_many_operations(&self) -> bool {
        self.status().is_some_and(|(code, message)| {
            code == Code::InvalidArgument && message.ends_with("too many operations in txn request")
        })
    }

    /// Whether what was asked for was compacted.
    pub(crate) fn is_about_compaction(&self) -> bool {
        self.status().is_some_and(|(code, message)| {
            code == Code::OutOfRange && message.ends_with("has been compacted")
        })
    }

    /// Whether the cluster wants no user, although it was given one.
    pub(crate) fn needs_no_user(&self) -> bool {
        self.status().is_some_and(|(_, message)| message.ends_with("authentication is not enabled"))
    }

    /// Whether the request was refused because of what the client logged in as: users have been
    /// demanded since, or rights were changed, which a signed token (JWT) does not survive.
    pub(crate) fn needs_another_login(&self) -> bool {
        self.status().is_some_and(|(code, message)| {
            code == Code::InvalidArgument
                && (message.ends_with("user name is empty") || is_about_changed_rights(message))
        })
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAnswer(_) | Self::Ended => ErrorKind::Unknown,
            Self::WatchRefused(_) => ErrorKind::Denied,
            Self::NotConnected(_)
            | Self::Closed
            | Self::Displaced
            | Self::LeftAlone(_)
            | Self::HungUp { .. } => ErrorKind::Unreachable,
            Self::OtherCluster { .. } => ErrorKind::Misconfigured,
            Self::Foreign(_) => ErrorKind::Foreign,
            Self::Client(error) => match &**error {
                etcd_client::Error::GRpcStatus(_) if self.was_not_sent() => ErrorKind::Unreachable,
                etcd_client::Error::GRpcStatus(status) => {
                    kind_of_answer(status.code(), status.message())
                }
                // A stream that broke, or was never opened.
                etcd_client::Error::WatchError(_)
                | etcd_client::Error::LeaseKeepAliveError(_)
                | etcd_client::Error::IoError(_)
                | etcd_client::Error::EndpointError(_)
                | etcd_client::Error::Internal(_) => ErrorKind::Unknown,
                _ => ErrorKind::Misconfigured,
            },
        }
    }

    fn status(&self) -> Option<(Code, &str)> {
        match self {
            Self::Client(error) => match &**error {
                etcd_client::Error::GRpcStatus(status) => Some((status.code(), status.message())),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the connection failed, or could not be made. An error that the server reports has no
    /// cause.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::NotConnected(_)) || self.causes().nth(1).is_some()
    }

    /// Whether the server has refused what was asked.
    pub(crate) fn is_an_answer(&self) -> bool {
        self.status().is_some() && !self.is_of_the_connection()
    }

    /// Whether there was no connection that the request could go out on.
    fn was_not_sent(&self) -> bool {
        self.causes().any(|cause| cause.is::<ConnectError>())
    }

    fn is_about_tls(&self) -> bool {
        self.breaks().any(|kind| kind == io::ErrorKind::InvalidData)
    }

    /// Whether the other end closed the connection instead of answering.
    fn is_hung_up(&self) -> bool {
        let is_end = |kind| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        };
        match self {
            Self::LeftAlone(failure) => failure.is_hung_up(),
            _ if self.breaks().any(is_end) => true,
            // Closed before the request was on its way.
            _ => {
                self.is_of_the_connection()
                    && self.status().is_some_and(|(code, _)| code == Code::Cancelled)
            }
        }
    }

    /// How the connection broke.
    fn breaks(&self) -> impl Iterator<Item = io::ErrorKind> {
        self.causes().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind)
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let mut next = match self {
            Self::Client(error) => match &**error {
                etcd_client::Error::GRpcStatus(status) => Some(status as &(dyn StdError + 'static)),
                _ => None,
            },
            _ => None,
        };
        std::iter::from_fn(move || {
            let cause = next?;
            next = cause.source();
            Some(cause)
        })
    }
}

/// What an answer of the server means
/// (<https://github.com/etcd-io/etcd/blob/main/api/v3rpc/rpctypes/error.go>). Where it says that it
/// gave up, the request may be carried out all the same.
fn kind_of_answer(code: Code, message: &str) -> ErrorKind {
    match code {
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        Code::ResourceExhausted if message.ends_with("too many requests") => ErrorKind::Unreachable,
        // HTTP/2 has an error of that kind, for a client that asks too often.
        Code::ResourceExhausted if message.starts_with("etcdserver:") => ErrorKind::Capacity,
        Code::Unavailable if message.ends_with("no leader") => ErrorKind::Unreachable,
        // The member only learns, or no longer leads.
        Code::Unavailable | Code::FailedPrecondition
            if message.ends_with("learner") || message.ends_with("not leader") =>
        {
            ErrorKind::Unreachable
        }
        // A lease that is over: the next ask has another.
        Code::NotFound => ErrorKind::Unreachable,
        Code::InvalidArgument if message.contains("authentication failed") => ErrorKind::Denied,
        Code::InvalidArgument if message.ends_with("user name is empty") => ErrorKind::Denied,
        Code::InvalidArgument if is_about_changed_rights(message) => ErrorKind::Unreachable,
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss => ErrorKind::Misconfigured,
        _ => ErrorKind::Unknown,
    }
}

/// Whether rights were changed since the client logged in, or while the request was under way.
fn is_about_changed_rights(message: &str) -> bool {
    message.contains("revision") && message.contains("auth")
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ErrorKind;
    use tonic::Code;

    use super::{Failure, kind_of_answer};

    #[test]
    fn answers_of_the_server_have_their_kind() {
        for (code, message, expected) in [
            (Code::Unavailable, "etcdserver: request timed out", ErrorKind::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", ErrorKind::Unknown),
            (Code::Unavailable, "etcdserver: no leader", ErrorKind::Unreachable),
            (
                Code::Unavailable,
                "etcdserver: rpc not supported for learner",
                ErrorKind::Unreachable,
            ),
            (Code::Unavailable, "transport error", ErrorKind::Unknown),
            (Code::Cancelled, "operation was canceled", ErrorKind::Unknown),
            (Code::DeadlineExceeded, "context deadline exceeded", ErrorKind::Unknown),
            (Code::Unknown, "raft: proposal dropped", ErrorKind::Unknown),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                ErrorKind::Capacity,
            ),
            (Code::ResourceExhausted, "etcdserver: too many requests", ErrorKind::Unreachable),
            (Code::ResourceExhausted, "too_many_pings", ErrorKind::Unknown),
            (Code::PermissionDenied, "etcdserver: permission denied", ErrorKind::Denied),
            (Code::Unauthenticated, "etcdserver: invalid auth token", ErrorKind::Denied),
            (Code::InvalidArgument, "etcdserver: user name is empty", ErrorKind::Denied),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                ErrorKind::Unreachable,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: rpc not supported for learner",
                ErrorKind::Unreachable,
            ),
            (Code::InvalidArgument, "etcdserver: request is too large", ErrorKind::Misconfigured),
            (Code::NotFound, "etcdserver: requested lease not found", ErrorKind::Unreachable),
            (Code::DataLoss, "etcdserver: corrupt cluster", ErrorKind::Misconfigured),
            (Code::Unimplemented, "unknown service", ErrorKind::Misconfigured),
        ] {
            assert_eq!(kind_of_answer(code, message), expected, "{code:?}: {message}");
        }
    }

    #[test]
    fn what_was_not_answered_is_unknown_unless_it_only_read() {
        let silent = || Failure::NoAnswer(std::time::Duration::from_secs(1));
        assert_eq!(silent().of_a_request().kind(), ErrorKind::Unknown);
        assert_eq!(silent().without_effect().kind(), ErrorKind::Unreachable);
        assert_eq!(silent().while_connecting().kind(), ErrorKind::Unreachable);
        assert_eq!(Failure::Closed.of_a_request().kind(), ErrorKind::Unreachable);
    }
}
