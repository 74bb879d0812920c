use std::sync::Arc;

use lockkit_core::driver::Limit;
use tokio::sync::SemaphorePermit;

use super::pool::Pool;
use super::source::Source;

pub(super) type Permits<'a> = [Option<SemaphorePermit<'a>>; 3];

/// The right to use one connection.
#[derive(Debug)]
pub(crate) struct Seat<'a, S: Source> {
    pool: &'a Arc<Pool<S>>,
    /// The connection, once it was given back.
    left: Option<S::Connection>,
    /// Whether the connection is older than the request.
    is_older: bool,
    /// How many others have come in its place.
    others: u32,
    _permits: Permits<'a>,
}

impl<'a, S: Source> Seat<'a, S> {
    pub(super) fn new(pool: &'a Arc<Pool<S>>, is_older: bool, permits: Permits<'a>) -> Self {
        Self { pool, left: None, is_older, others: 0, _permits: permits }
    }

    /// Leaves the connection for the next request.
    pub(crate) fn give_back(mut self, connection: S::Connection) {
        self.left = Some(connection);
    }

    /// Notes that the connection was of no use to this request. If it was made for it, that counts as
    /// a failed attempt to connect, so that the next one pauses.
    pub(crate) fn was_in_vain(&self, failure: &S::Failure) {
        if !self.is_older {
            self.pool.note_failure(failure.clone());
        }
    }

    /// Another connection in place of one that has ended, if that one was not made for this
    /// request, so that nobody could have seen its end before. The other may be one that was given
    /// back just now, and have ended as well: there are two at most. `None` if there is none in
    /// time.
    pub(crate) async fn another(&mut self, limit: Limit) -> Option<S::Connection> {
        const MOST: u32 = 2;
        if !self.is_older || self.others == MOST {
            return None;
        }
        self.others += 1;
        match self.pool.connection(limit).await {
            Ok((connection, is_older)) => {
                self.is_older = is_older;
                Some(connection)
            }
            Err(failure) => {
                let endpoint = self.pool.source();
                tracing::debug!(%endpoint, %failure, "no other connection");
                None
            }
        }
    }
}

impl<S: Source> Drop for Seat<'_, S> {
    fn drop(&mut self) {
        if let Some(connection) = self.left.take() {
            self.pool.take_back(connection);
        }
    }
}
