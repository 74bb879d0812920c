//! Where connections come from, and why there are none.

use std::fmt;
use std::time::Duration;

use sqlx::Connection;
use tokio::time::timeout;

/// Where connections come from.
pub(crate) trait Source: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    type Connection: fmt::Debug + Send + 'static;
    type Failure: Failing + Clone + fmt::Debug + From<NoSeat>;

    /// Opens a connection, or gives up by itself.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Self::Failure>> + Send;

    /// Says goodbye.
    fn close(connection: Self::Connection) -> impl Future<Output = ()> + Send;
}

/// What goes wrong between us and a server.
pub(crate) trait Failing: fmt::Display + Sized + Send + 'static {
    /// There was no connection for that long; `last` is how the last attempt went.
    fn no_connection(limit: Duration, last: Option<Self>) -> Self;

    /// Whether waiting for another connection does not help.
    fn is_lasting(&self) -> bool;
}

/// Why a request has nowhere to sit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoSeat {
    /// All seats are taken.
    Busy,
    /// There are no seats any more.
    Closed,
}

/// Spares the server a line in its log.
pub(crate) async fn say_goodbye(connection: impl Connection) {
    const LIMIT: Duration = Duration::from_secs(1);
    match timeout(LIMIT, connection.close()).await {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tracing::debug!(%error, "a connection was not closed in order"),
        Err(_) => tracing::debug!("a connection was not closed within {LIMIT:?}"),
    }
}
