use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Claim, Grant, OwnerId, Release, Renewal};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tokio_util::task::AbortOnDropHandle;

use super::begun::{Begun, Progress};
use super::heart;
use super::registry::Outcome;
use super::server::{FailingStatement as _, Server};
use super::shared::Shared;
use super::turn::Turn;
use crate::seats::{Failing as _, NoSeat};

/// How many claims ask for a lock at a time, when many do.
const MOST_ASKS: usize = 16;

/// A session.
///
/// Statements go over it one after another, driven by whoever asks. One that is not answered in
/// time is seen through by a task, until the session is over by the clock: until then nobody can
/// tell whether the lock is held, and afterwards it does not matter.
pub(super) struct Session<S: Server> {
    pub(super) shared: Arc<Shared<S>>,
    asks: Semaphore,
    heart: AbortOnDropHandle<()>,
}

impl<S: Server> Session<S> {
    /// A session that is opened when it is needed.
    pub(super) fn new(server: Arc<S>, ttl: Duration, runtime: Handle) -> Self {
        let shared = Arc::new(Shared::new(server, ttl, runtime));
        let heart = AbortOnDropHandle::new(shared.runtime.spawn(heart::beat(shared.clone())));
        Self { shared, asks: Semaphore::new(MOST_ASKS), heart }
    }

    /// Opens the session, with one attempt. It may stand already.
    pub(super) async fn open(&self) -> Result<(), S::Failure> {
        self.turn().await.open().await
    }

    /// After how long without an answer the session is over.
    pub(super) fn ttl(&self) -> Duration {
        let life = self.shared.registry().life();
        life.map_or(self.shared.ttl, |life| life.ttl)
    }

    /// Takes the lock if it is free or already the claim's. A claim that `listens` is to be told of
    /// the next release. The key is that of the claim's name.
    pub(super) async fn take(
        &self,
        key: S::Key,
        claim: &Claim,
        listens: bool,
        limit: Duration,
    ) -> Result<Outcome, S::Failure> {
        let (claim, asked) = (claim.clone(), self.shared.clock.now());
        let until = tokio::time::Instant::now() + limit;
        // So that what is held is renewed and released in between.
        let asking = timeout_at(until, self.asks.acquire());
        let _asking = asking.await.map_err(|_| NoSeat::Busy)?;
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        self.ask(left, move |turn| turn.take(key, claim, listens, asked)).await
    }

    /// Takes the lock once it is free, or gives up when the server does, which is well before the
    /// session's TTL is over. Nobody else can use the session meanwhile. It has to stand, and is
    /// for that claim alone; which claim that is, is asked when its turn comes. `None` if there is
    /// no such claim.
    pub(super) async fn wait(
        &self,
        claim: impl FnOnce() -> Option<Claim>,
    ) -> Option<(Claim, Result<Option<Grant>, S::Failure>)> {
        let turn = self.turn().await;
        let claim = claim()?;
        let answer = match self.shared.server.key(claim.name()) {
            Ok(key) => turn.wait(key, claim.clone()).await,
            Err(failure) => Err(failure),
        };
        Some((claim, answer))
    }

    /// Returns when no request is under way.
    pub(super) async fn idle(&self) {
        drop(self.shared.line.lock().await);
    }

    pub(super) fn stands(&self) -> bool {
        self.shared.registry().life().is_some()
    }

    pub(super) fn holds_anything(&self) -> bool {
        !self.shared.registry().is_empty()
    }

    pub(super) fn holds_for(&self, claim: &Claim) -> bool {
        let key = self.shared.server.key(claim.name());
        key.is_ok_and(|key| self.shared.registry().holds(&key, claim.owner()))
    }

    /// Breaks off the wait of `other`, if it waits.
    pub(super) async fn interrupt(&self, other: &Self, limit: Duration) -> Result<(), S::Failure> {
        let trace = other.shared.traces().alive.clone();
        match trace {
            Some(trace) => self.ask(limit, move |turn| turn.interrupt(trace)).await,
            None => Ok(()),
        }
    }

    /// Finds out whether the session that holds the claim's lock stands, by one statement for all
    /// claims that are renewed at about the same time.
    pub(super) async fn renew(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Renewal, S::Failure> {
        let key = self.shared.server.key(claim.name())?;
        if !self.shared.registry().holds(&key, claim.owner()) {
            return Ok(Renewal::Lost);
        }
        let (claim, asked) = (claim.clone(), self.shared.clock.now());
        self.shared.crowd.gather().await;
        if let Some(vouch) = self.shared.vouch_of_another(&key, &claim, asked) {
            return Ok(Renewal::Held(vouch));
        }
        match self.ask(limit, |turn| turn.renew(key.clone(), claim.clone(), asked)).await {
            // Its turn may not have come, but those before it may have found out.
            Err(failure) => match self.shared.vouch_of_another(&key, &claim, asked) {
                Some(vouch) => Ok(Renewal::Held(vouch)),
                None => Err(failure),
            },
            renewal => renewal,
        }
    }

    /// Unlocks what the claim holds.
    pub(super) async fn release(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Release, S::Failure> {
        // A name that has no key was never asked for.
        let Ok(key) = self.shared.server.key(claim.name()) else { return Ok(Release::NotHeld) };
        let claim = claim.clone();
        self.ask(limit, |turn| turn.release(key, claim)).await
    }

    /// Whether a session that ended may have a lock for that owner.
    pub(super) fn is_in_doubt(&self, owner: OwnerId) -> bool {
        self.shared.registry().is_in_doubt(owner)
    }

    /// Sees to it that no session that ended has one.
    pub(super) async fn settle(&self, owner: OwnerId, limit: Duration) -> Result<(), S::Failure> {
        match self.is_in_doubt(owner) {
            true => self.ask(limit, move |turn| turn.settle(owner)).await,
            false => Ok(()),
        }
    }

    /// Notes how a release went that is to be repeated because something else may be left.
    pub(super) fn note_release(&self, owner: OwnerId, release: Release) {
        self.shared.registry().note_release(owner, release);
    }

    /// Returns when the claim's hold has ended with the session; never for a claim that holds
    /// nothing.
    pub(super) async fn lost(&self, claim: &Claim) {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            // From here on, no notification is missed.
            ended.as_mut().enable();
            if self.shared.registry().has_lost(claim.owner()) {
                return;
            }
            ended.await;
        }
    }

    /// Ends the session, and with it whatever it holds, until it is opened again.
    pub(super) async fn rest(&self) {
        self.turn().await.rest().await;
    }

    /// Ends the session for good.
    pub(super) async fn close(&self) {
        self.heart.abort();
        self.shared.closed.cancel();
        let mut line = self.shared.line.lock().await;
        if let Some(connection) = line.take() {
            self.shared.server.close(connection).await;
        }
        self.shared.end();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.closed.is_cancelled()
    }

    async fn turn(&self) -> Turn<S> {
        let line = self.shared.line.clone().lock_owned().await;
        Turn { shared: self.shared.clone(), line, progress: Arc::default() }
    }

    /// Has `work` done when its turn comes. What has been begun is seen through, even when the time
    /// is over or the caller goes away.
    async fn ask<T, W>(
        &self,
        limit: Duration,
        work: impl FnOnce(Turn<S>) -> W,
    ) -> Result<T, S::Failure>
    where
        W: Future<Output = Result<T, S::Failure>> + Send + 'static,
        T: Send + 'static,
    {
        let until = tokio::time::Instant::now() + limit;
        let turn = timeout_at(until, self.shared.line.clone().lock_owned());
        let line = turn.await.map_err(|_| NoSeat::Busy)?;
        if self.is_closed() {
            return Err(NoSeat::Closed.into());
        }
        let progress = Arc::<Progress>::default();
        let turn = Turn { shared: self.shared.clone(), line, progress: progress.clone() };
        let runtime = self.shared.runtime.clone();
        let begun = Begun::new(work(turn), progress.clone(), runtime);
        match timeout_at(until, begun).await {
            Ok(answer) => answer,
            Err(_) if progress.is_sent() => Err(S::Failure::no_answer(limit)),
            Err(_) => Err(S::Failure::no_connection(limit, self.shared.last_attempt())),
        }
    }
}

impl<S: Server> Drop for Session<S> {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

impl<S: Server> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.shared.server.to_string();
        f.debug_struct("Session").field("endpoint", &endpoint).finish_non_exhaustive()
    }
}
