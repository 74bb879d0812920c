//! Requests of one claim that are under way at the same time: one is late, or was repeated.

use std::cell::Cell;

use lockkit_core::driver::{Attempt, Claim, Driver as _, DriverError};
use tokio::task::yield_now;

use crate::connection::Connection;
use crate::context::{Context, Verdict};

/// Whether the race shows what is wrong is a matter of chance, and less so with requests that come
/// some steps later than the first.
const ROUNDS: usize = 10;

/// The same where a break comes in between, which has to hit the time between two steps.
const BREAKS: usize = 20;

pub(in crate::checks) async fn a_release_is_one_step(context: &Context) -> Verdict {
    let (holder, next) = context.pair().await?;
    for round in 0..ROUNDS {
        let (early, late) = two_claims(context, round)?;
        holder.take(&early).await?;
        let release = |steps| {
            let (holder, early) = (&holder, &early);
            async move {
                for _ in 0..steps {
                    holder.release(&Claim::new(early.name().clone(), early.ttl())).await?;
                }
                Verdict::Ok(holder.release(early).await?)
            }
        };
        let (handed_over, first, second, third) = tokio::join!(
            hand_over(context, &holder, &next, &early, &late),
            release(0),
            release(1),
            release(2)
        );
        handed_over?;
        for released in [first, second, third] {
            released?;
        }
        is_kept(&next, &late, "a release").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_renewal_is_one_step(context: &Context) -> Verdict {
    let (holder, next) = context.pair().await?;
    for round in 0..ROUNDS {
        let (early, late) = two_claims(context, round)?;
        holder.take(&early).await?;
        let renewal = |steps| {
            let (holder, early) = (&holder, &early);
            async move {
                for _ in 0..steps {
                    holder.renew(&Claim::new(early.name().clone(), early.ttl())).await?;
                }
                Verdict::Ok(holder.renew(early).await?)
            }
        };
        let (first, second, third, handed_over) = tokio::join!(
            renewal(0),
            renewal(1),
            renewal(2),
            hand_over(context, &holder, &next, &early, &late)
        );
        handed_over?;
        for renewed in [first, second, third] {
            renewed?;
        }
        holder.is_lost(&early, "it was released, and another owner holds the lock").await?;
        is_kept(&next, &late, "a renewal").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_release_is_one_step_beside_a_break(context: &Context) -> Verdict {
    beside_breaks(context, Request::Release).await
}

pub(in crate::checks) async fn a_renewal_is_one_step_beside_a_break(context: &Context) -> Verdict {
    beside_breaks(context, Request::Renewal).await
}

pub(in crate::checks) async fn a_repeated_ask_is_one_step_beside_a_break(
    context: &Context,
) -> Verdict {
    beside_breaks(context, Request::RepeatedAsk).await
}

/// The requests that may come for a hold that is taken away meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Release,
    Renewal,
    RepeatedAsk,
}

impl Request {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "a release",
            Self::Renewal => "a renewal",
            Self::RepeatedAsk => "a repeated ask",
        }
    }

    async fn send(self, holder: &Connection, claim: &Claim) -> Verdict {
        match self {
            Self::Release => is_answered(holder.release(claim).await),
            Self::Renewal => is_answered(holder.renew(claim).await),
            Self::RepeatedAsk => is_answered(holder.try_acquire(claim).await),
        }
    }

    /// Three such requests for `early`, each some steps later than the one before: so many that it
    /// depends on the round how far they are when the hold is taken away.
    async fn send_several(self, holder: &Connection, early: &Claim, round: usize) -> Verdict {
        let stranger = Claim::new(early.name().clone(), early.ttl());
        let later = async |steps| {
            for _ in 0..steps {
                is_answered(holder.renew(&stranger).await)?;
            }
            self.send(holder, early).await
        };
        let first = round / 2 % 5;
        let (one, two, three) = tokio::join!(later(first), later(first + 1), later(first + 2));
        one.and(two).and(three)
    }
}

/// The hold is taken away while requests for it are under way, and the next owner keeps the lock.
async fn beside_breaks(context: &Context, request: Request) -> Verdict {
    let (holder, next) = context.pair().await?;
    let outside = context.connect().await?;
    for round in 0..BREAKS {
        let (early, late) = two_claims(context, round)?;
        holder.take_after_trouble(context, &early).await?;
        let (sent, taken_over) = tokio::join!(
            request.send_several(&holder, &early, round),
            take_over(context, &outside, &next, [&early, &late], round)
        );
        sent?;
        let is_taken_over = taken_over?;
        // An ask of the first owner may have come before that, and is then a new grant.
        if is_taken_over || request != Request::RepeatedAsk {
            if !is_taken_over {
                next.ask_until_granted(context, &late, context.patience()).await?;
            }
            holder.is_lost(&early, "it was taken away, and another owner holds the lock").await?;
            is_kept(&next, &late, request.name()).await?;
        }
        holder.release(&early).await?;
    }
    Ok(())
}

/// A hold may take its session along, and what is under way then fails.
fn is_answered<T>(answer: Result<T, DriverError>) -> Verdict {
    match answer {
        Err(error) if !error.kind().is_transient() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Takes the lock away from `early`, if it has it, while `late` asks for it over and over, so that
/// one ask comes right after the break. Returns whether `late` got it.
async fn take_over(
    context: &Context,
    outside: &Connection,
    next: &Connection,
    [early, late]: [&Claim; 2],
    round: usize,
) -> Verdict<bool> {
    for _ in 0..round % 2 {
        next.renew(late).await?;
    }
    let is_over = Cell::new(false);
    let revoke = async {
        context.revoke_from(outside, early).await?;
        is_over.set(true);
        Verdict::Ok(())
    };
    let ask = async {
        loop {
            // Looked at before the ask, so that the last one comes after the break.
            let is_last = is_over.get();
            if let Attempt::Granted(_) = next.try_acquire(late).await? {
                return Verdict::Ok(true);
            }
            if is_last {
                return Ok(false);
            }
            yield_now().await;
        }
    };
    // A hook takes the lock from whoever has it.
    if !context.capabilities().inspection {
        revoke.await?;
        return ask.await;
    }
    tokio::try_join!(revoke, ask).map(|(_, is_taken)| is_taken)
}

fn two_claims(context: &Context, round: usize) -> Verdict<(Claim, Claim)> {
    let name = context.name(&format!("lock{round}-@"))?;
    Ok((Claim::new(name.clone(), context.long()), Claim::new(name, context.long())))
}

/// Has `late` take the lock as soon as `early` has let go.
async fn hand_over(
    context: &Context,
    holder: &Connection,
    next: &Connection,
    early: &Claim,
    late: &Claim,
) -> Verdict {
    holder.release(early).await?;
    next.ask_until_granted(context, late, context.patience()).await.map(drop)
}

/// The hold of the next owner stands, whatever else was asked for the last one.
async fn is_kept(next: &Connection, late: &Claim, what: &str) -> Verdict {
    next.is_kept(late, &format!("{what} of one owner ended the hold of the next")).await?;
    next.release(late).await?;
    Ok(())
}
