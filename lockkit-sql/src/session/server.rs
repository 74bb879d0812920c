use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::Claim;
use lockkit_core::{FencingToken, LockName};

use crate::seats::{Failing, NoSeat};

/// A server on which a session can hold locks. It is shown as where it is.
#[async_trait]
pub(crate) trait Server: Display + Send + Sync + 'static {
    /// A session. Dropping it closes the connection, whereupon the server ends the session.
    type Connection: Send + 'static;
    /// What the server knows a lock by.
    type Key: Clone + Debug + Eq + Hash + Send + Sync + 'static;
    /// Which session it is, for another one to end it.
    type Trace: Clone + Debug + Send + Sync + 'static;
    type Failure: FailingStatement;

    /// What the server knows the lock by.
    fn key(&self, name: &LockName) -> Result<Self::Key, Self::Failure>;

    /// Connects, within a limit of its own.
    async fn connect(&self) -> Result<Self::Connection, Self::Failure>;

    /// Has the server end the session once it has been idle for `ttl`. Returns the time-out that
    /// the server has set, which is not less, and which session it is.
    async fn begin(
        &self,
        connection: &mut Self::Connection,
        ttl: Duration,
    ) -> Result<(Duration, Self::Trace), Self::Failure>;

    /// Sends one statement, or several where one cannot do it.
    async fn send(
        &self,
        connection: &mut Self::Connection,
        request: &Request<'_, Self::Key, Self::Trace>,
    ) -> Result<Reply, Self::Failure>;

    /// Says goodbye, within a limit of its own. The socket is closed in any case.
    async fn close(&self, connection: Self::Connection);

    /// Called when somebody in this process may get the lock.
    fn freed(&self, name: &LockName);
}

/// A statement of a session.
#[derive(Debug)]
pub(crate) enum Request<'a, K, T> {
    /// Lock, and get a token. Only where the session does not hold the lock, since the server would
    /// let it in again.
    Take {
        key: &'a K,
        claim: &'a Claim,
        /// Whether a release is to be told, where the server can.
        #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "MySQL cannot"))]
        listens: bool,
    },
    /// The same, once the lock is free: wait in the server's own queue, for a part of the session's
    /// TTL.
    Wait { key: &'a K, claim: &'a Claim },
    /// Unlock, and tell the waiters.
    Release { key: &'a K },
    /// Unlock, and nothing else that could fail.
    GiveBack { key: &'a K },
    /// Break off the wait of another session of ours.
    Interrupt { trace: &'a T },
    /// End an earlier session of ours, if the server does not know yet that it is over: a
    /// connection can break at one end alone.
    Bury { trace: &'a T },
    /// Do nothing but answer, as a server that takes writes.
    Beat,
}

/// What a statement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted(FencingToken),
    /// Somebody else holds the lock. Another ask at once is worthwhile if the holder was told only
    /// now that somebody waits: it may have released before.
    Taken {
        ask_again: bool,
    },
    /// Whether the lock was held until now.
    Unlocked(bool),
    Alive,
    Interrupted,
    /// Whether the session is over: it has begun to unlock what it held, or is done with that. If
    /// not, it is about to end.
    Buried(bool),
}

/// What goes wrong with a statement of a session.
pub(crate) trait FailingStatement:
    Failing + std::error::Error + Clone + From<NoSeat> + Sync
{
    /// A statement was sent, and not answered for that long.
    fn no_answer(limit: Duration) -> Self;

    /// Whether the statement may have been carried out.
    fn leaves_a_doubt(&self) -> bool;
    /// Whether somebody has broken the statement off.
    fn is_interruption(&self) -> bool;
    /// Whether the statement has waited for as long as it may.
    fn is_impatience(&self) -> bool;
    /// What is left of the session whose statement failed.
    fn after(&self) -> After;
}

/// What is left of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The statement failed, and the session goes on.
    Stands,
    /// The server has said that it ends the session, or that it takes no writes any more: whoever
    /// connects is then given locks by another server.
    Ended,
    /// The connection broke: the server may not know it yet.
    Broken,
}

impl After {
    /// What is left after an error that is not an answer of the server's.
    pub(crate) fn error_of_the_client(error: &sqlx::Error) -> Self {
        match error {
            // The answer cannot be read.
            sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::RowNotFound => Self::Stands,
            // The other side has closed the connection.
            sqlx::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Ended,
            _ => Self::Broken,
        }
    }
}
