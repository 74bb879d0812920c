use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Backoff, Claim, Clock, Instant, OwnerId, Vouch};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turns, Notify};
use tokio_util::sync::CancellationToken;

use super::registry::{Life, Registry};
use super::server::{FailingStatement as _, Server};
use crate::together::{BatchWindow, longest};

/// What a driver's requests and tasks share.
pub(super) struct Shared<S: Server> {
    pub(super) server: Arc<S>,
    /// The TTL that is asked of the server.
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    /// The connection, while there is a session and no statement is under way.
    pub(super) line: Arc<Turns<Option<S::Connection>>>,
    pub(super) registry: Mutex<Registry<S::Key>>,
    pub(super) traces: Mutex<Traces<S::Trace>>,
    pub(super) attempts: Mutex<Attempts<S::Failure>>,
    /// The claims that renew.
    pub(super) crowd: BatchWindow,
    pub(super) ended: Notify,
    pub(super) began: Notify,
    pub(super) closed: CancellationToken,
    pub(super) runtime: Handle,
}

/// The sessions of ours that the server may have.
pub(super) struct Traces<T> {
    pub(super) alive: Option<T>,
    /// Those that ended without a goodbye, until the server has ended them; the latest one is last.
    pub(super) dead: Vec<T>,
}

impl<T> Default for Traces<T> {
    fn default() -> Self {
        Self { alive: None, dead: Vec::new() }
    }
}

/// How recent attempts to connect went.
pub(super) struct Attempts<F> {
    pub(super) backoff: Backoff,
    pub(super) last: Option<F>,
}

impl<F> Default for Attempts<F> {
    fn default() -> Self {
        Self { backoff: Backoff::default(), last: None }
    }
}

impl<S: Server> Shared<S> {
    pub(super) fn new(server: Arc<S>, ttl: Duration, runtime: Handle) -> Self {
        Self {
            server,
            ttl,
            clock: Clock::system(),
            line: Arc::default(),
            registry: Mutex::new(Registry::new()),
            traces: Mutex::default(),
            attempts: Mutex::default(),
            crowd: BatchWindow::default(),
            ended: Notify::new(),
            began: Notify::new(),
            closed: CancellationToken::new(),
            runtime,
        }
    }

    /// Nothing panics while it holds this lock, or those that follow.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry<S::Key>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attempts(&self) -> MutexGuard<'_, Attempts<S::Failure>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn traces(&self) -> MutexGuard<'_, Traces<S::Trace>> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the claim's hold is good for, if a statement of another claim that was sent since then
    /// has found that out: many renew at about the same time.
    pub(super) fn vouch_of_another(
        &self,
        key: &S::Key,
        claim: &Claim,
        asked: Instant,
    ) -> Option<Vouch> {
        let vouch = self.vouch(key, claim, asked)?;
        self.crowd.note(longest(self.ttl));
        Some(vouch)
    }

    pub(super) fn last_attempt(&self) -> Option<S::Failure> {
        self.attempts().last.clone()
    }

    /// Whether the session stood at some time since then.
    pub(super) fn has_answered_since(&self, asked: Instant) -> bool {
        self.registry().life().is_some_and(|life| life.since >= asked)
    }

    /// What the claim's hold is good for, if the session has stood at some time since then.
    pub(super) fn vouch(&self, key: &S::Key, claim: &Claim, asked: Instant) -> Option<Vouch> {
        let registry = self.registry();
        let life = registry.life().filter(|_| registry.holds(key, claim.owner()));
        life.filter(|life| life.since >= asked).map(Life::vouch)
    }

    /// Notes that the server has locked `key` for the claim; returns `None` if the session is over
    /// by now.
    pub(super) fn granted(&self, key: S::Key, claim: &Claim, token: FencingToken) -> Option<Vouch> {
        let mut registry = self.registry();
        let vouch = registry.life()?.vouch();
        registry.granted(key, claim.name().clone(), claim.owner(), token);
        Some(vouch)
    }

    /// Passes on the failure of a request about a lock, and notes the doubt if a session that ended
    /// may have the lock for that owner.
    pub(super) fn in_doubt(&self, owner: OwnerId, failure: S::Failure) -> S::Failure {
        if failure.leaves_a_doubt() && self.last_dead().is_some() {
            self.registry().doubt(owner);
        }
        failure
    }

    /// The last session that ended and that the server may not know to be over.
    pub(super) fn last_dead(&self) -> Option<S::Trace> {
        self.traces().dead.last().cloned()
    }

    /// Notes that the session is over.
    pub(super) fn end(&self) {
        let lost = self.registry().end();
        let mut traces = self.traces();
        if let Some(trace) = traces.alive.take() {
            traces.dead.push(trace);
        }
        drop(traces);
        self.ended.notify_waiters();
        for name in &lost {
            self.server.freed(name);
        }
    }
}
