use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

use crate::endpoint::Mode;

/// What can be asked of a server.
pub(crate) trait Request: Send + Sync {
    /// Whether the server answers nothing else on the connection until this is answered.
    const BLOCKS: bool = false;

    /// In a cluster, the slot of what the request is about; `None` if any server will do.
    fn slot(&self) -> Option<u16> {
        None
    }

    /// Asks, and returns the answer. An error from the server is returned as an error.
    fn send(
        &self,
        connection: &mut MultiplexedConnection,
        to: To,
    ) -> impl Future<Output = RedisResult<Value>> + Send;
}

impl Request for Cmd {
    async fn send(&self, connection: &mut MultiplexedConnection, _: To) -> RedisResult<Value> {
        connection.send_packed_command(self).await?.extract_error()
    }
}

/// To whom a request is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) mode: Mode,
    /// Whether to tell the server that the slot is just being moved to it.
    pub(crate) asking: bool,
}

/// How far a request has come.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    step: AtomicU8,
    /// When the last wait was over that came before it was sent, if there was one.
    waited_until: Mutex<Option<Instant>>,
}

/// It waits for the connection that all have.
const BEGUN: u8 = 0;
/// It waits for its turn to have a connection of its own.
const QUEUED: u8 = 1;
/// It waits for that connection.
const CONNECTING: u8 = 2;
/// It waits for that connection, after it waited for its turn.
const CONNECTING_LATE: u8 = 3;
/// It waits for its answer.
const SENT: u8 = 4;

impl Stage {
    pub(crate) fn queues(&self) {
        self.set(QUEUED);
    }

    pub(crate) fn connects(&self) {
        match self.is(QUEUED) {
            true => {
                self.has_waited();
                self.set(CONNECTING_LATE);
            }
            false => self.set(CONNECTING),
        }
    }

    pub(crate) fn sends(&self) {
        self.set(SENT);
    }

    /// Takes note that the request was certainly not carried out.
    pub(crate) fn reset(&self) {
        self.set(BEGUN);
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.is(CONNECTING) || self.is(CONNECTING_LATE)
    }

    /// Whether it may have been carried out.
    pub(crate) fn is_sent(&self) -> bool {
        self.is(SENT)
    }

    /// Takes note that it had to wait before it could be sent. Where it has not, no clock is read.
    pub(crate) fn has_waited(&self) {
        *self.waited_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a call that was not sent within `limit` waited for its turn for most of that. It has
    /// its turn after all when those before it end at the same time.
    pub(crate) fn had_no_turn(&self, limit: Duration) -> bool {
        self.is(QUEUED) || self.is(CONNECTING_LATE) && self.silence(limit) < limit / 2
    }

    /// How long the server has been silent when a call ends without an answer after `limit`.
    pub(crate) fn silence(&self, limit: Duration) -> Duration {
        let waited_until = *self.waited_until.lock().unwrap_or_else(PoisonError::into_inner);
        waited_until.map_or(limit, |until| until.elapsed().min(limit))
    }

    fn is(&self, step: u8) -> bool {
        self.step.load(Ordering::Relaxed) == step
    }

    fn set(&self, step: u8) {
        self.step.store(step, Ordering::Relaxed);
    }
}
