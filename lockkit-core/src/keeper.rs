//! The keeper owns a claim from before its first request until its last trace is gone.
//!
//! Users never own a claim: they have a [`Driven`](crate::driven::Driven) future or a guard, and
//! dropping either, anywhere, only tells the keeper. The keeper drops no `try_acquire`, `renew` or
//! `release` that was started, since a request that was sent can land at any time; it cleans up
//! after whatever it no longer waits for.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::select;
use tracing::Instrument as _;

use crate::clock::Instant;
use crate::driven::Caller;
use crate::driver::{Change, Claim, DriverError, ErrorKind, Release, Renewal};
use crate::engine::Engine;
use crate::guard::Seat;
use crate::options::{Lease, Renew, Wait};
use crate::owner::Behind;
use crate::pace::{Pause, jitter};
use crate::progress::Progress;
use crate::pursuit::{Asked, Pursuit, Won};
use crate::tenure::{Kept, Phase, Tenure, Untold, Vouched};
use crate::turns::Ticket;
use crate::{Liveness, LockGuard, Operation, Result, meter};

/// What an acquisition reports. A guard that nobody fetches is dropped, and so lets go.
pub(crate) type Acquired = Result<LockGuard>;

/// Acquires: asks once, and leaves what takes longer to a task.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice, as captured and as moved"
)]
pub(crate) fn keep(
    engine: Arc<Engine>,
    claim: Claim,
    wait: Wait,
    lease: Lease,
    behind: Option<Behind>,
    mut caller: Caller<Acquired>,
) -> impl Future<Output = ()> + Send {
    async move {
        // A suspension that is noticed only after the grant would end the hold.
        let mut progress =
            Progress::new(engine.clock.now(), wait, lease.renewal()).behind_others(behind);
        let begun = {
            let mut pursuit = Pursuit::of(&engine, &claim, &mut progress);
            let begun = pursuit.begin(&mut caller).await;
            pursuit.rest();
            begun
        };
        match begun {
            Some(Asked::Won(won)) => take(engine, claim, won, progress.end(), lease, caller),
            Some(Asked::Again(next)) => {
                // A task at once, though the work might become one later: the task takes less room
                // than this.
                let spawner = Arc::clone(&engine);
                spawner.spawn(
                    wait_and_take(engine, claim, progress, next, lease, caller).in_current_span(),
                );
            }
            None if progress.traces => Box::pin(clear_up_wait(engine, claim, progress)).await,
            None => (),
        }
    }
}

/// Waits, and then takes the lock or leaves nothing behind: the rest of the life of a claim that
/// was not granted at once. Waiters are many, so it is small.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice, as captured and as moved"
)]
fn wait_and_take(
    engine: Arc<Engine>,
    claim: Claim,
    mut progress: Progress,
    next: Option<Instant>,
    lease: Lease,
    mut caller: Caller<Acquired>,
) -> impl Future<Output = ()> + Send {
    async move {
        let won = {
            let mut pursuit = Pursuit::of(&engine, &claim, &mut progress);
            let won = pursuit.wait(next, &mut caller).await;
            pursuit.rest();
            won
        };
        if let Some(won) = won {
            take(engine, claim, won, progress.end(), lease, caller);
        } else if progress.traces {
            Box::pin(clear_up_wait(engine, claim, progress)).await;
        }
    }
}

/// Leaves nothing behind of a claim that was not granted. A turn that comes with a place is passed on
/// when the first release is over: mostly the place is free then. Any other was, or is now.
async fn clear_up_wait(engine: Arc<Engine>, claim: Claim, progress: Progress) {
    let Progress { in_doubt, ticket, .. } = progress;
    let mut place = ticket.filter(Ticket::is_one_of_several);
    let remains = Remains::of_wait(&claim, in_doubt);
    clear_up(&engine, &claim, remains, |_| drop(place.take())).await;
}

/// Makes a hold of a grant, for the caller.
fn take(
    engine: Arc<Engine>,
    claim: Claim,
    Won { grant, vouched }: Won,
    in_doubt: Option<Instant>,
    lease: Lease,
    mut caller: Caller<Acquired>,
) {
    let token = grant.fencing_token().map(|token| token.get());
    tracing::debug!(lock = %claim.name(), owner = %claim.owner(), token, "held");
    let tenure = Tenure::new(engine, claim, &grant, vouched, in_doubt, lease.longest_hold());
    let tenure = Arc::new(tenure);
    let guard = LockGuard::new(Arc::clone(&tenure));
    tenure.engine.nursery.add(Arc::clone(&tenure), lease.renewal());
    // A caller that is gone gives the guard back, to be dropped.
    drop(caller.report(Ok(guard)));
}

/// Releases what the last guard of a hold lets go of, and reports how that went. Reports nothing if
/// the hold was lost.
///
/// Those who watch the hold hear of its end when this is polled again, since the request has left
/// by then. If they became ready together with the task that sends the request, tokio would hand
/// some of them to another thread, and wake that thread first.
pub(crate) async fn retire(seat: Seat, mut caller: Caller<Result<()>>) {
    let Some(tenure) = seat.vacate() else { return };
    let (mut has_left, mut untold) = (false, Some(Untold(&tenure)));
    let Tenure { engine, claim, .. } = &*tenure;
    let mut released = pin!(clear_up(engine, claim, tenure.remains(true), |answer| {
        let outcome = match answer {
            Ok(Release::Freed) => Ok(()),
            Ok(Release::NotHeld) => Err(engine.lost_error(claim.name())),
            Err(error) => Err(engine.failed_error(Operation::Release, Some(claim.name()), error)),
        };
        // A caller that is gone does not want to know.
        _ = caller.report(outcome);
    }));
    poll_fn(|cx| {
        let poll = released.as_mut().poll(cx);
        if std::mem::replace(&mut has_left, true) {
            untold = None;
        }
        poll
    })
    .await;
}

/// Lengthens a hold on its guard's demand.
pub(crate) async fn extend(tenure: Arc<Tenure>, ttl: Duration, mut caller: Caller<Result<()>>) {
    let Tenure { engine, claim, .. } = &*tenure;
    tenure.ask_for(ttl);
    let asked = engine.clock.stamp();
    let wished = claim.clone().with_ttl(ttl);
    let outcome = match engine.driver.renew(&wished).await {
        Ok(Renewal::Held(vouch)) => {
            tenure.wish(ttl);
            tenure.vouch(Vouched::new(vouch, asked, ttl));
            if tenure.is_held() { Ok(()) } else { Err(engine.lost_error(claim.name())) }
        }
        Ok(Renewal::Lost) => {
            tenure.lose();
            Err(engine.lost_error(claim.name()))
        }
        Err(error) => Err(engine.failed_error(Operation::Renew, Some(claim.name()), error)),
    };
    // A caller that is gone does not want to know.
    _ = caller.report(outcome);
}

/// Looks after a hold until it ends, one way or the other, and leaves nothing behind.
pub(crate) async fn hold(kept: Kept, renew: Renew) {
    let tenure = &*kept;
    let unfinished = match renew {
        Renew::Auto => keep_renewed(tenure).await,
        Renew::Never => {
            await_end(tenure).await;
            None
        }
    };
    // A renewal that lands after the release revives nothing; it is only seen through.
    let unfinished = async {
        if let Some(renewal) = unfinished {
            renewal.await;
        }
    };
    match tenure.glance().phase {
        // The caller releases, without waiting for this task.
        Phase::Released => unfinished.await,
        phase => {
            let Tenure { engine, claim, .. } = tenure;
            let remains = tenure.remains(phase == Phase::Dropped);
            tokio::join!(unfinished, clear_up(engine, claim, remains, |_| ()));
        }
    }
}

type Renewing<'a> = Pin<Box<dyn Future<Output = Renewed> + Send + 'a>>;

/// Renews until the hold ends, and returns the renewal that is under way then.
async fn keep_renewed(tenure: &Tenure) -> Option<Renewing<'_>> {
    let Tenure { engine, claim, .. } = tenure;
    let mut renewal: Option<Renewing<'_>> = None;
    // Whether to begin a renewal, if the hold has not ended by then.
    let mut start = false;
    let mut retry = None;
    // Whether there was news since a renewal began, or since the last one failed: more news is of no
    // use before the next renewal, and some drivers have news without end.
    let mut heard = false;
    let mut earliest = None;
    loop {
        let (standing, change) = tenure.watch();
        if standing.phase != Phase::Held {
            break;
        }
        if start {
            heard = false;
            let wished = standing.wished;
            renewal = Some(Box::pin(async move {
                let asked = engine.clock.stamp();
                let answer = engine.driver.renew(&claim.clone().with_ttl(wished)).await;
                Renewed { asked, wished, answer }
            }));
        }
        let vouched = standing.vouched;
        let due = renewal.is_none().then(|| {
            let due = retry.unwrap_or(vouched.since + jitter(vouched.ttl / 3));
            earliest.map_or(due, |earliest| due.max(earliest))
        });
        let next = due.into_iter().chain(vouched.until).min();
        start = select! {
            biased;
            () = change => false,
            () = engine.stopping.cancelled() => { tenure.lose(); false }
            Renewed { asked, wished, answer } = wait_for(&mut renewal), if renewal.is_some() => {
                renewal = None;
                retry = None;
                // It may have been carried out before what there was news of.
                let again = std::mem::take(&mut heard);
                match answer {
                    Ok(Renewal::Held(vouch)) => {
                        tracing::trace!(lock = %claim.name(), owner = %claim.owner(), "renewed");
                        tenure.vouch(Vouched::new(vouch, asked, wished));
                        // A session may be vouched for from an earlier time: that is no cause to
                        // hurry.
                        earliest = Some(engine.clock.stamp() + vouched.ttl / 12);
                        again
                    }
                    Ok(Renewal::Lost) => {
                        tenure.lose();
                        false
                    }
                    Err(error) => {
                        meter::renewal_failed(engine, claim.name());
                        let (kind, source) = (error.kind(), error.into_source());
                        let (lock, owner) = (claim.name(), claim.owner());
                        tracing::warn!(%lock, %owner, %kind, source, "not renewed");
                        retry = Some(engine.clock.stamp() + jitter(vouched.ttl / 12));
                        false
                    }
                }
            }
            // At the end of the vouch, the next look at how the hold stands finds it lost.
            () = engine.clock.sleep_until_some(next) => next == due,
            change = engine.driver.changed(claim), if !heard => match change {
                Change::AskAgain | Change::Freed | Change::Granted(_) => {
                    heard = retry.is_some() || renewal.is_some();
                    !heard
                }
                Change::Lost => { tenure.lose(); false }
            }
        };
    }
    renewal
}

/// Waits for the end of a hold that is not renewed.
async fn await_end(tenure: &Tenure) {
    let Tenure { engine, claim, .. } = tenure;
    // When to listen again after news that calls for a renewal: some drivers have it without end.
    let mut deaf_until = None;
    loop {
        let (standing, change) = tenure.watch();
        if standing.phase != Phase::Held {
            break;
        }
        let vouched = standing.vouched;
        let next = deaf_until.into_iter().chain(vouched.until).min();
        select! {
            biased;
            () = change => (),
            () = engine.stopping.cancelled() => tenure.lose(),
            // At the end of the vouch as above.
            () = engine.clock.sleep_until_some(next) => deaf_until = None,
            change = engine.driver.changed(claim), if deaf_until.is_none() => match change {
                Change::AskAgain | Change::Freed | Change::Granted(_) => {
                    deaf_until = Some(engine.clock.stamp() + vouched.ttl / 12);
                }
                Change::Lost => tenure.lose(),
            }
        }
    }
}

struct Renewed {
    asked: Instant,
    wished: Duration,
    answer: Result<Renewal, DriverError>,
}

async fn wait_for<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// What a claim that is over may have left at the backend.
pub(crate) struct Remains {
    /// The longest lease that was ever asked for.
    pub(crate) longest: Duration,
    /// When the last request had left that was never answered and may still take the lock.
    pub(crate) in_doubt: Option<Instant>,
    /// Whether it is a hold that nobody knows to be lost.
    pub(crate) was_held: bool,
}

impl Remains {
    pub(crate) fn of_wait(claim: &Claim, in_doubt: Option<Instant>) -> Self {
        Self { longest: claim.ttl(), in_doubt, was_held: false }
    }
}

/// Repeats the release until it was answered and nothing that was sent before can land any more.
///
/// A request is dead a lease after it was sent. Whatever was taken by then has run out after the
/// longest lease that was asked for: with no answer to any release, that is the end of it. A
/// session goes on, so there an answer is needed.
///
/// The older a request, the less likely it still lands: the next release comes the later after one
/// that was answered, so that what a long lease leaves in doubt costs the backend little.
pub(crate) async fn clear_up(
    engine: &Engine,
    claim: &Claim,
    Remains { longest, in_doubt, was_held }: Remains,
    mut report: impl FnMut(Result<Release, DriverError>),
) {
    // Only the first release can find out that a hold was lost: a later one may find that an earlier
    // one has freed the lock.
    let mut may_find_loss = was_held;
    let bounded = engine.driver.capabilities().liveness == Liveness::Lease;
    // A driver over several backends keeps asking the silent ones for as long as the hold may last.
    let released = claim.clone().with_ttl(longest.max(claim.ttl()));
    // A release may be carried out long before it is answered.
    let mut asked = engine.clock.stamp();
    // From then on nothing that was sent before takes the lock.
    let settled = in_doubt.map_or(asked, |sent| asked.max(sent + claim.ttl()));
    let mut warned = false;
    let mut pause = Pause::new(claim.ttl() / 50);
    let longest_pause = (claim.ttl() / 4).min(Duration::from_secs(5));
    loop {
        let answer = release(engine, &released).await;
        if std::mem::take(&mut may_find_loss) && matches!(answer, Ok(Release::NotHeld)) {
            engine.tell_of_loss(claim);
        }
        let nothing_left = match &answer {
            Ok(_) => asked >= settled,
            Err(_) => bounded && engine.clock.stamp() >= settled + longest,
        };
        if let Err(error) = &answer
            && !std::mem::replace(&mut warned, true)
        {
            let (lock, kind) = (claim.name(), error.kind());
            tracing::warn!(%lock, owner = %claim.owner(), %kind, "not released yet");
        }
        let answered = answer.is_ok();
        report(answer);
        if nothing_left {
            tracing::debug!(lock = %claim.name(), owner = %claim.owner(), "released");
            return;
        }
        // What a closed driver cannot say, nobody will.
        if !answered && engine.closed.is_cancelled() {
            tracing::debug!(lock = %claim.name(), owner = %claim.owner(), "left to end by itself");
            return;
        }
        let now = engine.clock.stamp();
        let age = in_doubt.map(|sent| now.saturating_duration_since(sent)).unwrap_or_default();
        let next = match answered {
            true => (now + jitter(pause.next(longest_pause.max(age / 8)))).min(settled.max(now)),
            false => now + jitter(pause.next(longest_pause)),
        };
        engine.clock.sleep_until(next).await;
        asked = engine.clock.stamp();
    }
}

/// Asks the driver to release. If it panics, of which the panic hook tells, it has not answered.
async fn release(engine: &Engine, claim: &Claim) -> Result<Release, DriverError> {
    let mut released = engine.driver.release(claim);
    poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| released.as_mut().poll(cx)));
        poll.unwrap_or_else(|_| {
            let panicked = "the driver panicked while it released";
            Poll::Ready(Err(DriverError::new(ErrorKind::Unknown, panicked)))
        })
    })
    .await
}
