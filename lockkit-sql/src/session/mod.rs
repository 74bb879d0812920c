//! Locks that a session with a database server holds: what is the same for every server.
//!
//! A driver has one session, over a connection of its own, for all its locks. The server ends a
//! session that was idle for longer than a time-out, which makes it a lease for all locks at once;
//! whatever is sent on it, at the least a heartbeat, refreshes the lease. When the session ends, all
//! its locks are lost, and a new one is opened when it is asked for.

mod begun;
mod heart;
pub(crate) mod hold;
mod key;
mod registry;
mod server;
mod shared;
mod turn;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Claim, Release, Renewal};
use tokio::time::{timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use begun::{Begun, Progress};
use shared::Shared;
use turn::Turn;

use crate::seats::NoSeat;

pub(crate) use key::hash;
pub(crate) use registry::Outcome;
pub(crate) use server::{After, Failing, Reply, Request, Server};

/// How long saying goodbye may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The one session of a driver.
///
/// Statements go over it one after the other, driven by whoever asks. One that is not answered in
/// time is seen through by a task, until the session is over by the clock: until then nobody can
/// tell whether the lock is held, and afterwards it does not matter.
pub(crate) struct Session<S: Server> {
    shared: Arc<Shared<S>>,
    heart: AbortOnDropHandle<()>,
}

impl<S: Server> Session<S> {
    /// Connects for the first time, with one attempt.
    pub(crate) async fn open(server: S, ttl: Duration) -> Result<Self, S::Failure> {
        let shared = Arc::new(Shared::new(server, ttl));
        let line = shared.line.clone().lock_owned().await;
        let mut turn = Turn { shared: shared.clone(), line, progress: Arc::default() };
        turn.begin().await?;
        drop(turn);
        let heart = AbortOnDropHandle::new(tokio::spawn(heart::beat(shared.clone())));
        Ok(Self { shared, heart })
    }

    pub(crate) fn server(&self) -> &S {
        &self.shared.server
    }

    /// After how long without an answer it is over.
    pub(crate) fn ttl(&self) -> Duration {
        let life = self.shared.registry().life();
        life.map_or(self.shared.ttl, |life| life.ttl)
    }

    /// Takes the lock if it is free or the claim's already.
    pub(crate) async fn take(&self, claim: &Claim, limit: Duration) -> Result<Outcome, S::Failure> {
        let key = self.shared.server.key(claim.name())?;
        let (claim, asked) = (claim.clone(), self.shared.clock.now());
        self.ask(limit, move |turn| turn.take(key, claim, asked)).await
    }

    /// Finds out whether the session stands that holds the claim's lock.
    pub(crate) async fn renew(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Renewal, S::Failure> {
        let key = self.shared.server.key(claim.name())?;
        if !self.shared.registry().holds(&key, claim.owner()) {
            return Ok(Renewal::Lost);
        }
        let (claim, asked) = (claim.clone(), self.shared.clock.now());
        self.ask(limit, move |turn| turn.renew(key, claim, asked)).await
    }

    /// Unlocks what the claim holds.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        limit: Duration,
    ) -> Result<Release, S::Failure> {
        // A name that has no key was never asked for.
        let Ok(key) = self.shared.server.key(claim.name()) else { return Ok(Release::NotHeld) };
        let claim = claim.clone();
        self.ask(limit, |turn| turn.release(key, claim)).await
    }

    /// Returns when the claim's hold has ended with the session; never for one that holds nothing.
    pub(crate) async fn lost(&self, claim: &Claim) {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            // From here on it misses nothing.
            ended.as_mut().enable();
            if self.shared.registry().has_lost(claim.owner()) {
                return;
            }
            ended.await;
        }
    }

    /// Ends the session.
    pub(crate) async fn close(&self) {
        self.heart.abort();
        self.shared.closed.cancel();
        let mut line = self.shared.line.lock().await;
        if let Some(connection) = line.take() {
            // The socket is closed in any case.
            if timeout(CLOSE_LIMIT, self.shared.server.close(connection)).await.is_err() {
                tracing::debug!("a session was not closed within {CLOSE_LIMIT:?}");
            }
        }
        self.shared.end();
    }

    /// Has `work` done at its turn. What has been begun is seen through, also when the time is over
    /// or the caller goes away.
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
        if self.shared.closed.is_cancelled() {
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
        f.debug_struct("Session").field("server", &self.shared.server).finish_non_exhaustive()
    }
}
