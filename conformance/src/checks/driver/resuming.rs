//! What waiters hear of once their connection was cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver as _};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::connection::Connection;
use crate::context::{Context, Verdict};

/// Whether a release falls into the gap is a matter of chance.
const ROUNDS: usize = 12;

/// How many locks of each kind of waiter are let go in one cut.
const LOCKS: usize = 2;

pub(in crate::checks) async fn a_release_after_a_cut_is_heard_of(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let before = hold_and_wait(context, &holder, &waiter, "before").await?;
    let release = async {
        context.sever().await?;
        works_again(context, &holder, "holder-@").await?;
        works_again(context, &waiter, "waiter-@").await?;
        for (held, _) in &before {
            context.after_trouble(async || holder.release(held).await).await?;
        }
        Verdict::Ok(())
    };
    are_told(context, &waiter, &before, "before a cut", release).await?;
    let after = hold_and_wait(context, &holder, &waiter, "after").await?;
    let release = async {
        for (held, _) in &after {
            context.after_trouble(async || holder.release(held).await).await?;
        }
        Ok(())
    };
    are_told(context, &waiter, &after, "after a cut", release).await
}

pub(in crate::checks) async fn a_release_during_a_cut_is_not_missed(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    for round in 0..ROUNDS {
        let waiting = hold_and_wait(context, &holder, &waiter, &format!("lock{round}")).await?;
        let release = async {
            let is_cut = AtomicBool::new(false);
            let cut = async {
                let outcome = context.sever().await;
                is_cut.store(true, Ordering::Relaxed);
                outcome
            };
            let release = async {
                // Whoever asks all the time is the first to know.
                while let Some((held, _)) = waiting.first()
                    && !is_cut.load(Ordering::Relaxed)
                    && holder.renew(held).await.is_ok()
                {
                    yield_now().await;
                }
                for (held, _) in &waiting {
                    release_at_once(context, &holder, held).await?;
                }
                Verdict::Ok(())
            };
            let (cut, released) = tokio::join!(cut, release);
            cut.and(released)
        };
        are_told(context, &waiter, &waiting, "before a cut", release).await?;
    }
    Ok(())
}

/// Holds a few locks for each kind of claim that waits, and returns the holds and who was refused and
/// is told.
async fn hold_and_wait(
    context: &Context,
    holder: &Connection,
    waiter: &Connection,
    when: &str,
) -> Verdict<Vec<(Claim, Claim)>> {
    let mut pairs = Vec::new();
    for number in 0..LOCKS {
        for (place, kind) in context.kinds().into_iter().skip(1).enumerate() {
            let name = context.name(&format!("{when}-{number}-{place}-@"))?;
            let held = Claim::new(name, context.long());
            let waiting = kind(Claim::new(held.name().clone(), context.long()));
            holder.take_after_trouble(context, &held).await?;
            if is_heard(context, waiter, &waiting).await? {
                pairs.push((held, waiting));
            }
        }
    }
    Ok(pairs)
}

/// Whether a claim to a held lock is told of its release. It may not be just after a cut.
async fn is_heard(context: &Context, waiter: &Connection, waiting: &Claim) -> Verdict<bool> {
    let begun = waiting.now();
    loop {
        match context.after_trouble(async || waiter.try_acquire(waiting).await).await? {
            Attempt::Taken(taken) if !taken.is_unheard() => return Ok(true),
            Attempt::Taken(_) => (),
            _ => refute!("the lock was granted, although it is held"),
        }
        if waiting.now().saturating_duration_since(begun) > 2 * context.ttl() {
            return Ok(false);
        }
        sleep(context.ttl() / 20).await;
    }
}

/// Those that wait listen while the locks are let go, and get them without an ask that the driver
/// did not call for.
async fn are_told(
    context: &Context,
    waiter: &Connection,
    pairs: &[(Claim, Claim)],
    when: &str,
    release: impl Future<Output = Verdict>,
) -> Verdict {
    let listen = async {
        for (_, waiting) in pairs {
            waiter.listen_through_trouble(context, waiting).await?;
            context.after_trouble(async || waiter.release(waiting).await).await?;
        }
        Verdict::Ok(())
    };
    let both = async { tokio::join!(listen, release) };
    let what = format!("news of a release, for who was refused {when}");
    // It may take a while until the backend is within reach again.
    let (told, released) = context.within(2 * context.patience(), &what, both).await?;
    released.and(told)
}

/// Gets a lock over a connection that may have been cut.
async fn works_again(context: &Context, connection: &Connection, shape: &str) -> Verdict {
    let claim = Claim::new(context.name(shape)?, context.long());
    connection.take_after_trouble(context, &claim).await.map(drop)
}

/// Releases as soon as the backend can be reached again.
async fn release_at_once(context: &Context, holder: &Connection, held: &Claim) -> Verdict {
    let begun = held.now();
    loop {
        match holder.release(held).await {
            Err(error)
                if error.kind().is_transient()
                    && held.now().saturating_duration_since(begun) < context.patience() =>
            {
                // A connection may have a few others to try that are cut as well.
                context.pass(Duration::from_micros(100)).await;
            }
            released => return Ok(released.map(drop)?),
        }
    }
}
