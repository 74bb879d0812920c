use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkit_core::driver::{Claim, Clock, Instant, Release, Renewal};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turns, Notify, OwnedMutexGuard};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::registry::{Life, Outcome, Registry};
use super::server::{After, Failing, Reply, Request, Server};
use crate::backoff::Backoff;
use crate::seats::NoSeat;

/// How long saying goodbye may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

/// The one session of a driver.
///
/// Statements go over it one after the other, driven by whoever asks. One that is not answered in
/// time is seen through by a task, until the session is over by the clock: until then nobody can
/// tell whether the lock is held, and afterwards it does not matter.
pub(crate) struct Session<S: Server> {
    shared: Arc<Shared<S>>,
    heart: AbortOnDropHandle<()>,
    housekeeping: AbortOnDropHandle<()>,
}

impl<S: Server> Session<S> {
    /// Connects for the first time, with one attempt.
    pub(crate) async fn open(server: S, ttl: Duration) -> Result<Self, S::Failure> {
        let shared = Arc::new(Shared {
            server,
            ttl,
            clock: Clock::system(),
            line: Arc::default(),
            registry: Mutex::new(Registry::new()),
            traces: Mutex::default(),
            attempts: Mutex::default(),
            ended: Notify::new(),
            began: Notify::new(),
            closed: CancellationToken::new(),
            runtime: Handle::current(),
        });
        let line = shared.line.clone().lock_owned().await;
        let mut turn = Turn { shared: shared.clone(), line, progress: Arc::default() };
        turn.begin().await?;
        drop(turn);
        let heart = AbortOnDropHandle::new(tokio::spawn(beat(shared.clone())));
        let housekeeping = AbortOnDropHandle::new(tokio::spawn(keep_house(shared.clone())));
        Ok(Self { shared, heart, housekeeping })
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
        self.housekeeping.abort();
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
        let begun = Begun {
            work: Some(Box::pin(work(turn))),
            progress: progress.clone(),
            runtime: self.shared.runtime.clone(),
        };
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

struct Shared<S: Server> {
    server: S,
    /// What is wished of the server.
    ttl: Duration,
    clock: Clock,
    /// The connection, while there is a session and no statement is under way.
    line: Arc<Turns<Option<S::Connection>>>,
    registry: Mutex<Registry<S::Key>>,
    traces: Mutex<Traces<S::Trace>>,
    attempts: Mutex<Attempts<S::Failure>>,
    ended: Notify,
    began: Notify,
    closed: CancellationToken,
    runtime: Handle,
}

/// Which sessions the server may have of ours.
struct Traces<T> {
    alive: Option<T>,
    /// The last one that ended without a goodbye.
    dead: Option<T>,
}

impl<T> Default for Traces<T> {
    fn default() -> Self {
        Self { alive: None, dead: None }
    }
}

/// How connecting went lately.
struct Attempts<F> {
    backoff: Backoff,
    last: Option<F>,
}

impl<F> Default for Attempts<F> {
    fn default() -> Self {
        Self { backoff: Backoff::default(), last: None }
    }
}

impl<S: Server> Shared<S> {
    /// Nothing panics while it holds this, or the next.
    fn registry(&self) -> MutexGuard<'_, Registry<S::Key>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts<S::Failure>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traces(&self) -> MutexGuard<'_, Traces<S::Trace>> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_attempt(&self) -> Option<S::Failure> {
        self.attempts().last.clone()
    }

    /// Whether the session stood at some time since then.
    fn has_answered_since(&self, asked: Instant) -> bool {
        self.registry().life().is_some_and(|life| life.since >= asked)
    }

    /// The session is over.
    fn end(&self) {
        let lost = self.registry().end();
        let mut traces = self.traces();
        if let Some(trace) = traces.alive.take() {
            traces.dead = Some(trace);
        }
        drop(traces);
        self.ended.notify_waiters();
        for name in &lost {
            self.server.freed(name);
        }
    }
}

/// How far a request has come, as its caller and whoever sees it through have to know. They never
/// run at the same time.
#[derive(Debug, Default)]
struct Progress {
    is_sent: AtomicBool,
    is_left: AtomicBool,
}

impl Progress {
    fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }
}

/// Work that is seen through by a task if it is dropped before its end.
struct Begun<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    progress: Arc<Progress>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Begun<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.work {
            None => Poll::Pending,
            Some(work) => work.as_mut().poll(context).map(|output| {
                self.work = None;
                output
            }),
        }
    }
}

impl<T: Send + 'static> Drop for Begun<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.progress.is_left.store(true, Ordering::Release);
            // Its answer is in the registry.
            drop(self.runtime.spawn(async move { drop(work.await) }));
        }
    }
}

/// The right to use the session.
struct Turn<S: Server> {
    shared: Arc<Shared<S>>,
    line: OwnedMutexGuard<Option<S::Connection>>,
    progress: Arc<Progress>,
}

impl<S: Server> Turn<S> {
    async fn take(
        mut self,
        key: S::Key,
        claim: Claim,
        asked: Instant,
    ) -> Result<Outcome, S::Failure> {
        let shared = self.shared.clone();
        let (mut has_asked_again, mut has_reconnected) = (false, false);
        loop {
            self.stand().await?;
            let known = shared.registry().known(&key, claim.owner());
            let request = match known {
                None => Request::Take { key: &key, claim: &claim },
                // Also what an earlier ask of the same claim came to, after its caller had left.
                Some(known) if shared.has_answered_since(asked) => return Ok(known),
                // The session may have ended without our knowing.
                Some(_) => Request::Beat,
            };
            match self.send(&request).await {
                Ok(Reply::Alive) => (),
                Ok(Reply::Granted(token)) => {
                    let mut registry = shared.registry();
                    // It may be over by the clock since the answer came.
                    let Some(life) = registry.life() else { continue };
                    registry.granted(key, claim.name().clone(), claim.owner(), token);
                    return Ok(Outcome::Granted { token, vouch: life.vouch() });
                }
                Ok(Reply::Taken { ask_again: true }) if !has_asked_again => has_asked_again = true,
                Ok(_) => return Ok(Outcome::Taken),
                Err(failure) => match failure.after() {
                    After::Stands => {
                        // What failed may have been what came after the lock.
                        self.give_back(&key).await;
                        return Err(failure);
                    }
                    // A session that ended takes along what it took: ask on a new one.
                    After::Ended | After::Broken
                        if !has_reconnected && !self.progress.is_left() =>
                    {
                        has_reconnected = true;
                    }
                    After::Ended | After::Broken => return Err(failure),
                },
            }
        }
    }

    async fn renew(
        mut self,
        key: S::Key,
        claim: Claim,
        asked: Instant,
    ) -> Result<Renewal, S::Failure> {
        let shared = self.shared.clone();
        let vouch = || {
            let registry = shared.registry();
            let life = registry.life().filter(|_| registry.holds(&key, claim.owner()));
            life.filter(|life| life.since >= asked).map(Life::vouch)
        };
        // Somebody else's statement may have found out meanwhile.
        if let Some(vouch) = vouch() {
            return Ok(Renewal::Held(vouch));
        }
        if self.is_over() {
            return Ok(Renewal::Lost);
        }
        let answer = self.send(&Request::Beat).await;
        match (vouch(), answer) {
            (Some(vouch), Ok(_)) => Ok(Renewal::Held(vouch)),
            (_, Err(failure)) if failure.after() == After::Stands => Err(failure),
            _ => Ok(Renewal::Lost),
        }
    }

    async fn release(mut self, key: S::Key, claim: Claim) -> Result<Release, S::Failure> {
        let shared = self.shared.clone();
        if self.is_over() || !shared.registry().holds(&key, claim.owner()) {
            return Ok(shared.registry().forget(claim.owner()));
        }
        let answer = match self.send(&Request::Release { key: &key }).await {
            Ok(Reply::Unlocked(true)) => Release::Freed,
            Ok(_) => Release::NotHeld,
            Err(failure) => match failure.after() {
                // It may have been unlocked, or not; afterwards it is.
                After::Stands if self.give_back(&key).await => Release::Freed,
                After::Stands => return Err(failure),
                // The session took the lock along, as soon as the server knows.
                After::Ended | After::Broken => match self.begin().await {
                    Ok(()) => return Ok(shared.registry().forget(claim.owner())),
                    Err(_) => return Err(failure),
                },
            },
        };
        let mut registry = shared.registry();
        registry.let_go(&key);
        if self.progress.is_left() {
            registry.note_release(claim.owner(), answer);
        }
        drop(registry);
        shared.server.freed(claim.name());
        Ok(answer)
    }

    async fn beat(&mut self) {
        if !self.is_over()
            && let Err(failure) = self.send(&Request::Beat).await
        {
            tracing::debug!(server = ?self.shared.server, %failure, "no heartbeat");
        }
    }

    /// Unlocks, whether it is locked or not; a session on which that fails is given up.
    async fn give_back(&mut self, key: &S::Key) -> bool {
        let answer = self.send(&Request::GiveBack { key }).await;
        if let Err(failure) = &answer
            && failure.after() == After::Stands
        {
            self.give_up(failure);
        }
        answer.is_ok()
    }

    /// Makes sure that there is a session.
    async fn stand(&mut self) -> Result<(), S::Failure> {
        if self.is_over() {
            let pause = self.shared.attempts().backoff.pause();
            sleep(pause).await;
            self.begin().await?;
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), S::Failure> {
        let shared = self.shared.clone();
        let begun = tokio::select! {
            begun = self.try_to_begin() => begun,
            () = shared.closed.cancelled() => Err(NoSeat::Closed.into()),
        };
        let mut attempts = shared.attempts();
        match begun {
            Ok(()) => {
                *attempts = Attempts::default();
                drop(attempts);
                shared.began.notify_one();
                Ok(())
            }
            Err(failure) => {
                tracing::debug!(server = ?shared.server, %failure, "no session");
                attempts.backoff.failed();
                attempts.last = Some(failure.clone());
                Err(match failure.is_lasting() {
                    true => failure,
                    false => S::Failure::no_connection(shared.ttl, Some(failure)),
                })
            }
        }
    }

    async fn try_to_begin(&mut self) -> Result<(), S::Failure> {
        let Shared { server, clock, ttl, .. } = &*self.shared;
        let mut connection = server.connect().await?;
        let dead = self.shared.traces().dead.clone();
        if let Some(dead) = dead
            && let Err(failure) = server.bury(&mut connection, &dead).await
        {
            // Its time-out will end it.
            tracing::debug!(?server, %failure, "an earlier session may still be there");
            if failure.after() != After::Stands {
                return Err(failure);
            }
        }
        let since = clock.now();
        let (ttl, trace) = server.begin(&mut connection, *ttl).await?;
        *self.shared.traces() = Traces { alive: Some(trace), dead: None };
        self.shared.registry().begin(Life { since, ttl });
        *self.line = Some(connection);
        Ok(())
    }

    /// Whether there is no session; one that has had no answer for too long is ended.
    fn is_over(&mut self) -> bool {
        let life = self.shared.registry().life();
        let stands = life.is_some_and(|life| self.shared.clock.now() < life.end());
        if life.is_some() && !stands {
            self.give_up(&"it had no answer for the length of its time-out");
        }
        !stands || self.line.is_none()
    }

    fn give_up(&mut self, why: &dyn fmt::Display) {
        tracing::debug!(server = ?self.shared.server, %why, "the session is over");
        *self.line = None;
        self.shared.end();
    }

    /// Sends a statement, if somebody still wants it, and waits for its answer until the session is
    /// over by the clock.
    async fn send(&mut self, request: &Request<'_, S::Key>) -> Result<Reply, S::Failure> {
        let shared = self.shared.clone();
        if self.progress.is_left() && !self.progress.is_sent() {
            return Err(NoSeat::Busy.into());
        }
        let Some(life) = shared.registry().life() else { return Err(NoSeat::Closed.into()) };
        let Some(mut connection) = self.line.take() else { return Err(NoSeat::Closed.into()) };
        self.progress.is_sent.store(true, Ordering::Release);
        // Whatever takes this away takes the session along.
        let under_way = UnderWay { shared: &shared, is_answered: false };
        let sent = shared.clock.now();
        let answer = tokio::select! {
            biased;
            answer = shared.server.send(&mut connection, request) => answer,
            () = shared.clock.sleep_until(life.end()) => Err(S::Failure::no_answer(life.ttl)),
            () = shared.closed.cancelled() => Err(NoSeat::Closed.into()),
        };
        let stands = match &answer {
            Ok(_) => true,
            Err(failure) => failure.after() == After::Stands,
        };
        if stands && shared.clock.now() < life.end() {
            shared.registry().answered(sent);
            under_way.is_answered();
            *self.line = Some(connection);
            return answer;
        }
        if let Err(failure) = &answer {
            tracing::debug!(server = ?shared.server, %failure, "the session is over");
        }
        // Closed before the others learn of it, so that the server does too.
        drop(connection);
        drop(under_way);
        match stands {
            true => Err(S::Failure::no_answer(life.ttl)),
            false => answer,
        }
    }
}

struct UnderWay<'a, S: Server> {
    shared: &'a Shared<S>,
    is_answered: bool,
}

impl<S: Server> UnderWay<'_, S> {
    fn is_answered(mut self) {
        self.is_answered = true;
    }
}

impl<S: Server> Drop for UnderWay<'_, S> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.end();
        }
    }
}

/// Sends something before the session was idle for long, and so learns of its end.
async fn beat<S: Server>(shared: Arc<Shared<S>>) {
    loop {
        let life = shared.registry().life();
        match life {
            None => shared.began.notified().await,
            Some(life) if shared.clock.now() < life.next_beat() => {
                shared.clock.sleep_until(life.next_beat()).await;
            }
            Some(life) => {
                let line = shared.line.clone().lock_owned().await;
                // Another statement may have been answered while this waited for its turn.
                if shared.registry().life() == Some(life) {
                    let progress = Arc::default();
                    Turn { shared: shared.clone(), line, progress }.beat().await;
                }
            }
        }
    }
}

/// Removes what nobody has used for long, every hour; and one time in fifty at once, for
/// applications whose processes never get that old.
async fn keep_house<S: Server>(shared: Arc<Shared<S>>) {
    if fastrand::u32(0..50) != 0 {
        sleep(SWEEP_EVERY.mul_f64(fastrand::f64())).await;
    }
    loop {
        let line = shared.line.clone().lock_owned().await;
        let mut turn = Turn { shared: shared.clone(), line, progress: Arc::default() };
        if !turn.is_over()
            && let Err(failure) = turn.send(&Request::Sweep).await
        {
            tracing::debug!(%failure, "idle rows were not removed");
        }
        drop(turn);
        sleep(SWEEP_EVERY).await;
    }
}
