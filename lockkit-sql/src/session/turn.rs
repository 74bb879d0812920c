use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{self, Claim, Grant, OwnerId, Release, Renewal};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep, timeout};

use super::begun::Progress;
use super::registry::{Life, Outcome};
use super::server::{After, FailingStatement, Reply, Request, Server};
use super::shared::{Attempts, Shared};
use crate::seats::{Failing as _, NoSeat};

/// How long opening a session may take, from connecting on. All others stand in line meanwhile, and
/// a network path that has gone silent does not say so.
const OPENING_LIMIT: Duration = Duration::from_secs(4);

/// How much of that is spent waiting for an earlier session that the server was told to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to use the session.
pub(super) struct Turn<S: Server> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) line: OwnedMutexGuard<Option<S::Connection>>,
    pub(super) progress: Arc<Progress>,
}

impl<S: Server> Turn<S> {
    pub(super) async fn take(
        mut self,
        key: S::Key,
        claim: Claim,
        listens: bool,
        asked: driver::Instant,
    ) -> Result<Outcome, S::Failure> {
        let (owner, mut doubt) = (claim.owner(), None);
        let answer = self.try_to_take(key, claim, listens, asked, &mut doubt).await;
        if matches!(answer, Ok(Outcome::Taken)) {
            self.shared.registry().forget_loss(owner);
        }
        // What was sent first may have been carried out, however the second attempt fared.
        answer.map_err(|failure| self.shared.in_doubt(owner, doubt.unwrap_or(failure)))
    }

    /// The same. `doubt` is set to how a session broke that may have the lock.
    async fn try_to_take(
        &mut self,
        key: S::Key,
        claim: Claim,
        listens: bool,
        mut asked: driver::Instant,
        doubt: &mut Option<S::Failure>,
    ) -> Result<Outcome, S::Failure> {
        let shared = self.shared.clone();
        let (mut has_asked_again, mut was_interrupted, mut broken) = (false, false, None);
        loop {
            self.stand().await?;
            // Either nobody would hear of what is taken now, or the session that broke may be the
            // one that has the lock.
            if (self.progress.is_left() || shared.last_dead().is_some())
                && let Some(failure) = broken.take()
            {
                return Err(failure);
            }
            let known = shared.registry().known(&key, claim.owner());
            let request = match known {
                None => Request::Take { key: &key, claim: &claim, listens },
                // This includes what an earlier ask of the same claim came to, after its caller had
                // left.
                Some(known) if shared.has_answered_since(asked) => return Ok(known),
                // The session may have ended without our knowing.
                Some(_) => Request::Beat,
            };
            match self.send(&request).await {
                Ok(Reply::Alive) => (),
                Ok(Reply::Granted(token)) => {
                    // The session may be over by the clock since the answer came.
                    if let Some(vouch) = shared.granted(key.clone(), &claim, token) {
                        return Ok(Outcome::Granted { token, vouch });
                    }
                }
                Ok(Reply::Taken { ask_again: true }) if !has_asked_again => has_asked_again = true,
                Ok(_) => return Ok(Outcome::Taken),
                Err(failure) => match failure.after() {
                    After::Stands => {
                        match known {
                            // What failed may have been what came after the locking.
                            None => {
                                if let Err(failure) = self.give_back(&key).await
                                    && failure.leaves_a_doubt()
                                {
                                    (*doubt, broken) = (Some(failure.clone()), Some(failure));
                                }
                            }
                            // A beat locks nothing, and one that failed answers nobody's ask.
                            Some(_) => asked = shared.clock.now(),
                        }
                        // An interruption that was meant for an earlier wait may come late.
                        if !failure.is_interruption() || was_interrupted {
                            return Err(failure);
                        }
                        was_interrupted = true;
                    }
                    // A session that ended takes along what it took: ask on a new one.
                    After::Ended | After::Broken
                        if broken.is_none() && !self.progress.is_left() =>
                    {
                        if known.is_none() && failure.leaves_a_doubt() {
                            *doubt = Some(failure.clone());
                        }
                        broken = Some(failure);
                    }
                    After::Ended | After::Broken => return Err(failure),
                },
            }
        }
    }

    /// Waits for the lock for as long as the server does at a time, in a session that stands and
    /// is for this claim alone.
    pub(super) async fn wait(
        mut self,
        key: S::Key,
        claim: Claim,
    ) -> Result<Option<Grant>, S::Failure> {
        let shared = self.shared.clone();
        // What earlier claims have left behind, whose answers came late or were never heard of.
        loop {
            let stray = shared.registry().stray(claim.owner());
            let Some(stray) = stray else { break };
            self.send(&Request::Release { key: &stray }).await?;
            shared.registry().let_go(&stray);
        }
        // As long as the server waits, nothing else refreshes the session.
        if shared.registry().life().is_none_or(|life| life.stale() <= shared.clock.now()) {
            self.send(&Request::Beat).await?;
        }
        let grant = |token, vouch| Some(Grant::new().token(token).vouch(vouch));
        // An ask that nobody waited for may have been granted the lock.
        let known = shared.registry().known(&key, claim.owner());
        if let Some(Outcome::Granted { token, vouch }) = known {
            return Ok(grant(token, vouch));
        }
        match self.send(&Request::Wait { key: &key, claim: &claim }).await {
            Ok(Reply::Granted(token)) => match shared.granted(key, &claim, token) {
                Some(vouch) => Ok(grant(token, vouch)),
                None => Err(shared.in_doubt(claim.owner(), S::Failure::no_answer(shared.ttl))),
            },
            Ok(_) => self.end_of_a_vain_wait().await,
            // The lock may have been taken just then.
            Err(failure) if failure.after() == After::Stands => {
                let is_over = failure.is_interruption() || failure.is_impatience();
                match self.give_back(&key).await {
                    Ok(()) if is_over => self.end_of_a_vain_wait().await,
                    Ok(()) => Err(failure),
                    Err(failure) => Err(shared.in_doubt(claim.owner(), failure)),
                }
            }
            Err(failure) => Err(shared.in_doubt(claim.owner(), failure)),
        }
    }

    /// A wait by itself does not notice that the server takes no writes any more.
    async fn end_of_a_vain_wait(&mut self) -> Result<Option<Grant>, S::Failure> {
        match self.send(&Request::Beat).await {
            Err(failure) if failure.after() != After::Stands => Err(failure),
            _ => Ok(None),
        }
    }

    /// Breaks off the wait of the session with that trace, if it waits.
    pub(super) async fn interrupt(mut self, trace: S::Trace) -> Result<(), S::Failure> {
        self.stand().await?;
        self.send(&Request::Interrupt { trace: &trace }).await.map(drop)
    }

    /// Sees to it that there is a session.
    pub(super) async fn open(mut self) -> Result<(), S::Failure> {
        self.stand().await
    }

    /// Ends the session, and with it whatever it holds, until it is needed again.
    pub(super) async fn rest(mut self) {
        if let Some(connection) = self.line.take() {
            self.shared.traces().alive = None;
            self.shared.end();
            self.shared.server.close(connection).await;
        }
    }

    pub(super) async fn renew(
        mut self,
        key: S::Key,
        claim: Claim,
        asked: driver::Instant,
    ) -> Result<Renewal, S::Failure> {
        let shared = self.shared.clone();
        if let Some(vouch) = shared.vouch_of_another(&key, &claim, asked) {
            return Ok(Renewal::Held(vouch));
        }
        if self.is_over() {
            return Ok(Renewal::Lost);
        }
        let answer = self.send(&Request::Beat).await;
        match (shared.vouch(&key, &claim, asked), answer) {
            (Some(vouch), Ok(_)) => Ok(Renewal::Held(vouch)),
            (_, Err(failure)) if failure.after() == After::Stands => Err(failure),
            _ => Ok(Renewal::Lost),
        }
    }

    pub(super) async fn release(
        mut self,
        key: S::Key,
        claim: Claim,
    ) -> Result<Release, S::Failure> {
        let shared = self.shared.clone();
        if self.is_over() || !shared.registry().holds(&key, claim.owner()) {
            return Ok(shared.registry().forget(claim.owner()));
        }
        let answer = match self.send(&Request::Release { key: &key }).await {
            Ok(Reply::Unlocked(true)) => Release::Freed,
            Ok(_) => Release::NotHeld,
            Err(failure) => match failure.after() {
                // It may have been unlocked or not; after this, it is.
                After::Stands => match self.give_back(&key).await {
                    Ok(()) => Release::Freed,
                    Err(failure) => return Err(shared.in_doubt(claim.owner(), failure)),
                },
                // The session takes the lock along, as soon as the server knows.
                After::Ended | After::Broken => {
                    let failure = shared.in_doubt(claim.owner(), failure);
                    match self.begin().await {
                        Ok(()) => return Ok(shared.registry().forget(claim.owner())),
                        Err(_) => return Err(failure),
                    }
                }
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

    pub(super) async fn beat(&mut self) {
        if !self.is_over()
            && let Err(failure) = self.send(&Request::Beat).await
        {
            tracing::debug!(endpoint = %self.shared.server, %failure, "no heartbeat");
        }
    }

    /// Sees to it that no earlier session has a lock for that owner.
    pub(super) async fn settle(mut self, owner: OwnerId) -> Result<(), S::Failure> {
        let shared = self.shared.clone();
        self.stand().await?;
        // An earlier turn may have seen to it, or the opening of a session just now.
        while shared.registry().is_in_doubt(owner) {
            match shared.last_dead() {
                None => shared.registry().settle(),
                // The end of that session is not waited for, as others need this one: the call is
                // repeated.
                Some(trace) => match self.send(&Request::Bury { trace: &trace }).await? {
                    Reply::Buried(true) => drop(shared.traces().dead.pop()),
                    _ => return Err(S::Failure::no_answer(PATIENCE)),
                },
            }
        }
        Ok(())
    }

    /// Unlocks, whether it is locked or not. A session on which that fails is given up.
    async fn give_back(&mut self, key: &S::Key) -> Result<(), S::Failure> {
        let mut answer = self.send(&Request::GiveBack { key }).await;
        if answer.as_ref().is_err_and(FailingStatement::is_interruption) {
            answer = self.send(&Request::GiveBack { key }).await;
        }
        if let Err(failure) = &answer
            && failure.after() == After::Stands
        {
            self.give_up(failure);
        }
        answer.map(drop)
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

    pub(super) async fn begin(&mut self) -> Result<(), S::Failure> {
        let (shared, started) = (self.shared.clone(), Instant::now());
        let begun = tokio::select! {
            begun = timeout(OPENING_LIMIT, self.try_to_begin()) => {
                begun.unwrap_or_else(|_| Err(S::Failure::no_answer(OPENING_LIMIT)))
            }
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
                tracing::debug!(endpoint = %shared.server, %failure, "no session");
                attempts.backoff.failed();
                attempts.last = Some(failure.clone());
                Err(match failure.is_lasting() {
                    true => failure,
                    false => S::Failure::no_connection(started.elapsed(), Some(failure)),
                })
            }
        }
    }

    async fn try_to_begin(&mut self) -> Result<(), S::Failure> {
        let shared = self.shared.clone();
        let Shared { server, clock, ttl, .. } = &*shared;
        let mut connection = server.connect().await?;
        self.bury(&mut connection).await?;
        let since = clock.now();
        let (ttl, trace) = server.begin(&mut connection, *ttl).await?;
        shared.traces().alive = Some(trace);
        let are_all_over = shared.last_dead().is_none();
        let mut registry = shared.registry();
        registry.begin(Life { since, proven: since, ttl });
        if are_all_over {
            registry.settle();
        }
        drop(registry);
        *self.line = Some(connection);
        Ok(())
    }

    /// Ends the earlier sessions, as far as the server does that soon; otherwise their time-out
    /// will.
    async fn bury(&mut self, connection: &mut S::Connection) -> Result<(), S::Failure> {
        const PAUSE: Duration = Duration::from_millis(2);
        let (server, until) = (&self.shared.server, Instant::now() + PATIENCE);
        while let Some(trace) = self.shared.last_dead() {
            match server.send(connection, &Request::Bury { trace: &trace }).await {
                Ok(Reply::Buried(true)) => drop(self.shared.traces().dead.pop()),
                Ok(_) if Instant::now() < until => sleep(PAUSE).await,
                Ok(_) => {
                    tracing::debug!(endpoint = %server, "an earlier session is still there");
                    break;
                }
                Err(failure) => {
                    tracing::debug!(endpoint = %server, %failure, "an earlier session may still be there");
                    if failure.after() != After::Stands {
                        return Err(failure);
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether there is no session; one that has had no answer for too long is ended.
    pub(super) fn is_over(&mut self) -> bool {
        let life = self.shared.registry().life();
        let stands = life.is_some_and(|life| self.shared.clock.now() < life.end());
        if life.is_some() && !stands {
            self.give_up(&"it had no answer for the length of its time-out");
        }
        !stands || self.line.is_none()
    }

    fn give_up(&mut self, why: &dyn fmt::Display) {
        tracing::debug!(endpoint = %self.shared.server, %why, "the session is over");
        *self.line = None;
        self.shared.end();
    }

    /// Sends a statement, if somebody still wants it, and waits for its answer until the session is
    /// over by the clock.
    pub(super) async fn send(
        &mut self,
        request: &Request<'_, S::Key, S::Trace>,
    ) -> Result<Reply, S::Failure> {
        let shared = self.shared.clone();
        if self.progress.is_left() && !self.progress.is_sent() {
            return Err(NoSeat::Busy.into());
        }
        let Some(life) = shared.registry().life() else { return Err(NoSeat::Closed.into()) };
        let Some(mut connection) = self.line.take() else { return Err(NoSeat::Closed.into()) };
        self.progress.send();
        // If this is cancelled, the session goes with it.
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
            let mut registry = shared.registry();
            registry.answered(sent);
            if matches!(request, Request::Beat) {
                registry.proven(sent);
            }
            drop(registry);
            under_way.answered();
            *self.line = Some(connection);
            return answer;
        }
        if let Err(failure) = &answer {
            tracing::debug!(endpoint = %shared.server, %failure, "the session is over");
        }
        // Closed before the others learn of the end, so that the server learns of it, too.
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
    fn answered(mut self) {
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
