use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use lockkit_core::driver::{Clock, Instant, Limit, Looks, Vouch};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{CheckWriteError, Client, Error, SessionState, StateWatcher};

use crate::error::Failure;
use crate::layout::Queue;
use crate::proof::Proof;
use crate::room::Room;

/// A session with the servers, from its grant to its end.
///
/// The client library sends a request when its future is made, in the order of the calls. It puts
/// no limit on the answer, and carries out later what it cannot send now.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    /// Has seen none of the states since the session began.
    states: StateWatcher,
    tick: Duration,
    /// Whether the connection, if there is one, is new and has answered nothing.
    is_unheard: AtomicBool,
    proof: Mutex<Proof>,
    looks: Looks<Queue>,
    room: Room,
    given_up: CancellationToken,
}

/// Waits for an answer, but no longer than `limit`.
///
/// It and what builds on it are no `async fn`s, which would have room for the request twice.
pub(crate) fn within<F: Future>(
    limit: Limit,
    request: F,
) -> impl Future<Output = Result<F::Output, Failure>> {
    limit.bound(request).map(move |answer| answer.map_err(|_| Failure::NoAnswer(limit.length())))
}

/// A write and when it left, at the earliest.
pub(crate) struct Sent<F> {
    at: Instant,
    request: F,
}

impl Session {
    /// A session that was asked for at `asked` and granted.
    pub(crate) fn new(client: Client, asked: Instant, tick: Duration) -> Self {
        let (proof, looks) = (Mutex::new(Proof::new(asked, tick)), Looks::default());
        let (room, given_up) = (Room::default(), CancellationToken::new());
        let states = client.state_watcher();
        // To get here, the library has had an answer.
        let is_unheard = AtomicBool::new(false);
        Self { client, states, tick, is_unheard, proof, looks, room, given_up }
    }

    /// For requests that change nothing; others go through [`write`](Self::write).
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The looks at queues: each has seen what was sent in this session before the look was begun.
    pub(crate) fn looks(&self) -> &Looks<Queue> {
        &self.looks
    }

    /// The room for watches.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// How long the session lives after the leader last heard of it, as granted when it began: the
    /// client library does not tell what a server grants at a reconnect.
    pub(crate) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    /// Whether what is sent now is sent at once.
    ///
    /// The library takes itself for connected from the grant of the session on, and still does if
    /// that connection breaks before anything else has come, until there is another one.
    pub(crate) fn is_connected(&self) -> bool {
        self.has_connection() && !self.is_unheard.load(Ordering::Acquire)
    }

    /// Whether there is a connection, on which nothing may have been answered yet.
    pub(crate) fn has_connection(&self) -> bool {
        !self.given_up.is_cancelled() && self.client.state() == SessionState::SyncConnected
    }

    /// A request was answered on the connection. Returns whether it was the first.
    pub(crate) fn hears(&self) -> bool {
        self.is_unheard.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.given_up.is_cancelled() || self.client.state().is_terminated()
    }

    /// The session has ended for us. For the servers it ends when nobody has its client any more.
    pub(crate) fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Returns when we have given it up.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// The connection was lost: on the next one nothing has been answered, and the servers may count
    /// another length.
    pub(crate) fn doubt(&self) {
        self.is_unheard.store(true, Ordering::Release);
        self.proof().doubt();
    }

    /// The servers still count the same length.
    pub(crate) fn trust(&self) {
        self.proof().trust();
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.proof().is_in_doubt()
    }

    /// Its states since it began, or only the last one of those that have passed.
    pub(crate) fn states(&self) -> StateWatcher {
        self.states.clone()
    }

    /// Until when its nodes are known to stand.
    pub(crate) fn vouch(&self) -> Vouch {
        Vouch::Lease { since: self.proof().since(), ttl: self.proven_length() }
    }

    /// Whether that is over.
    pub(crate) fn is_over(&self) -> bool {
        self.proof().since() + self.proven_length() <= Clock::system().now()
    }

    /// For how long a proof is good.
    fn proven_length(&self) -> Duration {
        self.timeout().saturating_sub(self.tick)
    }

    /// The time between heartbeats: a quarter of the session, or less where ticks are long, so that
    /// a heartbeat is proven well before the last proof is used up.
    pub(crate) fn beat_interval(&self) -> Duration {
        let spare = self.timeout().saturating_sub(2 * self.tick);
        (self.timeout() / 4).min(spare / 6)
    }

    /// Writes nothing, which takes a majority like any other write.
    pub(crate) async fn beat(&self, path: &str, limit: Limit) -> Result<(), Failure> {
        let at = Clock::system().now();
        let writer = self.client.new_check_writer(path, None)?;
        let request = async {
            match writer.commit().await {
                // That the path is missing, or not for us, is an answer as well.
                Ok(_)
                | Err(CheckWriteError::CheckFailed { source: Error::NoNode | Error::NoAuth }) => {
                    Ok(())
                }
                Err(
                    CheckWriteError::RequestFailed { source }
                    | CheckWriteError::CheckFailed { source },
                ) => Err(source),
                Err(CheckWriteError::OperationFailed { source, .. }) => Err(source),
            }
        };
        self.write(limit, Sent { at, request }).await
    }

    /// Makes a write out of a request, which is sent by being made.
    pub(crate) fn send<F>(&self, request: impl FnOnce() -> F) -> Sent<F> {
        let at = Clock::system().now();
        Sent { at, request: request() }
    }

    /// Waits for the answer to a write, and takes note of what it proves.
    pub(crate) fn write<T>(
        &self,
        limit: Limit,
        Sent { at, request }: Sent<impl Future<Output = Result<T, Error>>>,
    ) -> impl Future<Output = Result<T, Failure>> {
        within(limit, request).map(move |answer| {
            let answer = answer?.map_err(Failure::from);
            if answer.as_ref().err().is_none_or(Failure::is_agreed) {
                self.proof().add(at, Clock::system().now());
            }
            answer
        })
    }

    /// Waits for the answer to a request that changes nothing.
    pub(crate) fn read<T>(
        &self,
        limit: Limit,
        request: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Failure>> {
        within(limit, request).map(|answer| Ok(answer??))
    }

    fn proof(&self) -> MutexGuard<'_, Proof> {
        // No step under the lock panics.
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both are the same session, not only of the same id.
pub(crate) fn is_same(one: &Arc<Session>, other: &Arc<Session>) -> bool {
    Arc::ptr_eq(one, other)
}
