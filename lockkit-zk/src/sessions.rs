//! One session after the other, with one heartbeat.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{Backoff, Limit};
use tokio::select;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zookeeper_client::StateWatcher;

use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::session::{Session, is_same, within};

/// The sessions of one driver: there is one at a time.
#[derive(Debug)]
pub(crate) struct Sessions {
    endpoint: Endpoint,
    standing: watch::Sender<Standing>,
    /// Why the last attempt to begin one failed.
    last_failure: Mutex<Option<Failure>>,
}

/// How things stand between us and the servers.
#[derive(Clone, Debug)]
struct Standing {
    /// `None` from the end of one session to the beginning of the next.
    session: Option<Arc<Session>>,
    is_connected: bool,
    /// How often the connection was lost, in all.
    losses: u64,
    is_closed: bool,
}

/// What has happened to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The connection was lost, this many times by now.
    Disconnected(u64),
    Ended,
}

impl Sessions {
    /// Begins the first session.
    pub(crate) async fn open(endpoint: Endpoint) -> Result<Self, Failure> {
        let session = Some(Arc::new(endpoint.open(None).await?));
        let standing = Standing { session, is_connected: true, losses: 0, is_closed: false };
        let standing = watch::Sender::new(standing);
        Ok(Self { endpoint, standing, last_failure: Mutex::default() })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The session, once it is connected.
    ///
    /// What cannot be sent now is not asked for: the client library would send it later.
    pub(crate) async fn connected(&self, limit: Limit) -> Result<Arc<Session>, Failure> {
        if let Some(session) = self.current().filter(|session| session.is_connected()) {
            return Ok(session);
        }
        let mut standing = self.standing.subscribe();
        // Nor one that was given up a moment ago.
        let is_connected = |session: &Arc<Session>| session.is_connected();
        let settled = standing.wait_for(|standing| {
            standing.is_closed || standing.session.as_ref().is_some_and(is_connected)
        });
        match within(limit, settled).await {
            // The sender lives as long as `self`.
            Ok(Ok(standing)) => standing.session.clone().ok_or(Failure::Closed),
            Ok(Err(_)) => Err(Failure::Closed),
            Err(_) => match self.last_failure() {
                Some(failure) if failure.is_lasting() => Err(failure),
                last => {
                    Err(Failure::NoConnection { limit: limit.length(), last: last.map(Box::new) })
                }
            },
        }
    }

    /// Whether there is a session that has not ended, connected or not.
    pub(crate) fn is_any(&self) -> bool {
        self.current().is_some_and(|session| !session.has_ended())
    }

    /// Waits for the end of a session, or for a loss of the connection after the first `known`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is consumed.
    pub(crate) async fn event(&self, session: &Arc<Session>, known: u64) -> Event {
        if session.has_ended() {
            return Event::Ended;
        }
        let mut standing = self.standing.subscribe();
        let is_it = |standing: &Standing| {
            standing.session.as_ref().is_some_and(|current| is_same(current, session))
        };
        let news = standing.wait_for(|standing| !is_it(standing) || standing.losses > known).await;
        match news {
            Ok(standing) if is_it(&standing) => Event::Disconnected(standing.losses),
            Ok(_) | Err(_) => Event::Ended,
        }
    }

    /// How often the connection was lost until now.
    pub(crate) fn losses(&self) -> u64 {
        self.standing.borrow().losses
    }

    /// Keeps the session alive; when it has ended, says so and begins a new one. Never returns.
    pub(crate) async fn keep(&self, path: &str, ended: impl Fn()) {
        let (mut backoff, mut last_tick) = (Backoff::default(), None);
        loop {
            if let Some(session) = self.current() {
                last_tick = Some(session.tick());
                self.keep_one(&session, path).await;
                self.stand(None);
                ended();
                tracing::warn!(session = session.id(), "the session has ended");
            }
            sleep(backoff.pause()).await;
            match self.endpoint.open(last_tick).await {
                Ok(session) => {
                    backoff.succeeded();
                    self.set_last_failure(None);
                    tracing::debug!(session = session.id(), "a session has begun");
                    self.stand(Some(Arc::new(session)));
                }
                Err(failure) => {
                    backoff.failed();
                    tracing::debug!(endpoint = %self.endpoint, %failure, "no session");
                    self.set_last_failure(Some(failure));
                }
            }
        }
    }

    /// Returns when the session has ended.
    async fn keep_one(&self, session: &Arc<Session>, path: &str) {
        let mut states = session.states();
        while !session.has_ended() {
            self.stand(Some(session.clone()));
            select! {
                biased;
                // If the session is connected now, it is so by another connection.
                _ = states.changed() => session.doubt(),
                () = self.prove(session, path) => (),
            }
        }
    }

    /// Proves that the session lives, as long as there is a connection. Returns when the session is
    /// given up.
    async fn prove(&self, session: &Arc<Session>, path: &str) {
        let mut backoff = Backoff::default();
        // As soon as the connection is back, and not while it is away: what is sent then would only
        // be sent later.
        while session.has_connection() {
            let limit = Limit::new(session.timeout() / 3);
            let failure = session.beat(path, limit).await.err();
            if let Some(failure) = &failure {
                tracing::debug!(session = session.id(), %failure, "no heartbeat");
            }
            if failure.as_ref().is_none_or(Failure::is_answer) && session.hears() {
                self.stand(Some(session.clone()));
            }
            if session.is_in_doubt() {
                match self.endpoint.still_grants(session).await {
                    Ok(true) => session.trust(),
                    Ok(false) => {
                        tracing::warn!(session = session.id(), "shorter sessions now");
                        return session.give_up();
                    }
                    Err(failure) => {
                        tracing::debug!(session = session.id(), %failure, "still in doubt");
                        // Nobody believes in it by then, and the length of the next one is known.
                        // Its connection may be the last that a server allows.
                        if session.is_over() {
                            return session.give_up();
                        }
                    }
                }
            }
            let is_settled = session.is_connected() && !session.is_in_doubt();
            let pause = match is_settled {
                true => session.beat_interval(),
                false => {
                    backoff.failed();
                    backoff.pause()
                }
            };
            sleep(pause).await;
        }
        std::future::pending().await
    }

    /// Tells everybody how things stand.
    fn stand(&self, session: Option<Arc<Session>>) {
        let is_connected = session.as_ref().is_some_and(|session| session.is_connected());
        self.standing.send_modify(|standing| {
            if standing.is_connected && !is_connected {
                standing.losses += 1;
            }
            standing.is_connected = is_connected && !standing.is_closed;
            standing.session = session.filter(|_| !standing.is_closed);
        });
    }

    /// Gives up the session, for good: everybody is told. For the servers it ends when nobody has its
    /// client any more. `None` if there is no session.
    pub(crate) fn close(&self) -> Option<Ending> {
        let mut states = None;
        self.standing.send_modify(|standing| {
            standing.is_closed = true;
            standing.is_connected = false;
            states = standing.session.take().map(|session| {
                session.give_up();
                session.states()
            });
        });
        states.map(Ending)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.standing.borrow().is_closed
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.standing.borrow().session.clone()
    }

    fn last_failure(&self) -> Option<Failure> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_last_failure(&self, failure: Option<Failure>) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// A session that nobody uses any more.
#[derive(Debug)]
pub(crate) struct Ending(StateWatcher);

impl Ending {
    /// Waits for a second at most until the servers know. Returns whether they do.
    pub(crate) async fn is_over(&mut self) -> bool {
        const LIMIT: Duration = Duration::from_secs(1);
        let ended = async { while !self.0.changed().await.is_terminated() {} };
        timeout(LIMIT, ended).await.is_ok()
    }
}
