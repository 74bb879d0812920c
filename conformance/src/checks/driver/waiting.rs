use std::time::Duration;

use lockkit_core::Fairness;
use lockkit_core::driver::{Attempt, Change, Claim, Driver as _, Instant, Vouch};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::leasing::is_as_vouched;
use crate::connection::Connection;
use crate::context::{Context, Stop, Verdict};

/// So many places that their numbers, as text, are in another order.
pub(super) const MANY: usize = 12;

/// Whether a release meets an ask is a matter of chance.
const ROUNDS: u32 = 40;

pub(in crate::checks) async fn a_release_is_not_missed(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let mut shortest = Duration::MAX;
    // More than once, since the first ask over a connection may take longer than others.
    for _ in 0..3 {
        for waiting in context.all_that_wait()? {
            let held = context.long_claim()?;
            holder.take(&held).await?;
            let asked = waiting.now();
            waiter.is_refused(&waiting, "it is held").await?;
            shortest = shortest.min(waiting.now().saturating_duration_since(asked));
            holder.release(&held).await?;
            let granted = waiter.listen_until_granted(&waiting);
            let what = "news of a release between the refusal and the listening";
            context.promptly(what, granted).await??;
            waiter.release(&waiting).await?;
        }
    }
    for round in 0..ROUNDS {
        // From the beginning of an ask until well after its end.
        let delay = shortest * 2 * round / ROUNDS;
        for waiting in context.all_that_wait()? {
            is_released_while_it_asks(context, &holder, &waiter, &waiting, round, delay).await?;
        }
    }
    Ok(())
}

/// A waiter that was refused is told of the release, even if that came before it knew.
async fn is_released_while_it_asks(
    context: &Context,
    holder: &Connection,
    waiter: &Connection,
    waiting: &Claim,
    turns: u32,
    delay: Duration,
) -> Verdict {
    let held = context.long_claim()?;
    holder.take(&held).await?;
    let release = async {
        // In virtual time an ask may take turns, and no time.
        for _ in 0..turns {
            yield_now().await;
        }
        context.pass(delay).await;
        holder.release(&held).await
    };
    let (asked, released) = tokio::join!(waiter.try_acquire(waiting), release);
    released?;
    match asked? {
        // It may be one too many to be told for now.
        Attempt::Taken(taken) if !taken.is_unheard() => {
            let what = "news of a release that came during the ask of a waiter";
            context.promptly(what, waiter.listen_until_granted(waiting)).await??;
        }
        _ => (),
    }
    waiter.release(waiting).await?;
    Ok(())
}

pub(in crate::checks) async fn a_release_wakes_who_listens(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    for waiter in [&waiter, &holder] {
        for waiting in context.all_that_wait()? {
            let held = context.long_claim()?;
            holder.take(&held).await?;
            waiter.is_refused(&waiting, "it is held").await?;
            let later = context.ttl() / 4;
            let release_later = async {
                tokio::time::sleep(later).await;
                holder.release(&held).await
            };
            let both = async { tokio::join!(waiter.listen_until_granted(&waiting), release_later) };
            let limit = later + context.patience();
            let (granted, released) = context.within(limit, "news of a release", both).await?;
            granted?;
            released?;
            waiter.release(&waiting).await?;
        }
    }
    Ok(())
}

pub(in crate::checks) async fn listening_may_be_broken_off(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    for waiting in context.all_that_wait()? {
        let held = context.long_claim()?;
        holder.take(&held).await?;
        waiter.is_refused(&waiting, "it is held").await?;
        let glance = Duration::from_millis(5);
        for _ in 0..5 {
            if timeout(glance, waiter.changed(&waiting)).await.is_ok() {
                waiter.is_refused(&waiting, "it is held").await?;
            }
        }
        holder.release(&held).await?;
        let granted = async {
            loop {
                if let Ok(change) = timeout(glance, waiter.changed(&waiting)).await {
                    match change {
                        Change::Granted(_) => return Verdict::Ok(()),
                        _ => return waiter.take(&waiting).await.map(drop),
                    }
                }
            }
        };
        let what = "news of a release while listening is broken off";
        context.promptly(what, granted).await??;
        waiter.release(&waiting).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn silence_while_nothing_changes(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    for waiting in context.all_that_wait()? {
        holder.keep(&held).await?;
        waiter.is_refused(&waiting, "it is held").await?;
        let ask = || waiter.is_refused(&waiting, "it is held");
        is_left_alone(context, &waiter, &waiting, "a waiter", ask).await?;
        waiter.release(&waiting).await?;
    }
    holder.keep(&held).await?;
    is_left_alone(context, &holder, &held, "a holder", || holder.keep(&held)).await
}

/// Listens, and asks when there is news, as the engine does.
async fn is_left_alone<T, F>(
    context: &Context,
    connection: &Connection,
    claim: &Claim,
    who: &str,
    ask: impl Fn() -> F,
) -> Verdict
where
    F: Future<Output = Verdict<T>>,
{
    const MOST: usize = 10;
    let listen = async {
        for _ in 0..MOST {
            let news = connection.changed(claim).await;
            ensure!(
                matches!(news, Change::AskAgain | Change::Freed),
                "{who} was told `{news:?}` while nothing changed"
            );
            ask().await?;
        }
        Verdict::Ok(())
    };
    // What is held does not run out by then.
    match timeout(context.ttl().min(context.long() / 2), listen).await {
        Err(_) => Ok(()),
        Ok(Err(stop)) => Err(stop),
        Ok(Ok(())) => fail!("{who} was woken {MOST} times while nothing changed"),
    }
}

pub(in crate::checks) async fn a_waiter_is_refused_like_any_other(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    for waiting in [context.long_claim()?.waiting(), context.queued(context.long_claim()?)] {
        let asks = async {
            waiter.is_refused(&waiting, "it is held").await?;
            waiter.is_refused(&waiting, "it is held; the waiter has asked before").await
        };
        context.promptly("the refusal of a waiter", asks).await??;
    }
    holder.keep(&held).await
}

pub(in crate::checks) async fn a_dead_waiter_does_not_block(context: &Context) -> Verdict {
    let (holder, dead) = context.pair().await?;
    let alive = context.connect().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    dead.is_refused(&context.queued(context.claim()?), "it is held").await?;
    let waiting = context.queued(context.claim()?);
    alive.is_refused(&waiting, "it is held").await?;
    holder.release(&held).await?;
    alive.ask_until_granted(context, &waiting, context.expiry(waiting.ttl())).await?;
    Ok(())
}

pub(in crate::checks) async fn dead_waiters_run_out_together(context: &Context) -> Verdict {
    // At a lease each, they take much longer than any driver is late.
    const DEAD: usize = 20;
    let (holder, dead) = context.pair().await?;
    let alive = context.connect().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    for _ in 0..DEAD {
        dead.is_refused(&context.claim()?.fair(), "it is held").await?;
    }
    let waiting = context.claim()?.fair();
    alive.is_refused(&waiting, "it is held").await?;
    holder.release(&held).await?;
    alive.ask_until_granted(context, &waiting, context.expiry(waiting.ttl())).await?;
    Ok(())
}

pub(in crate::checks) async fn a_released_waiter_is_not_waited_for(context: &Context) -> Verdict {
    let (holder, first) = context.pair().await?;
    let second = context.connect().await?;
    let held = context.long_claim()?;
    let [left, waiting] =
        [context.queued(context.long_claim()?), context.queued(context.long_claim()?)];
    holder.take(&held).await?;
    first.is_refused(&left, "it is held").await?;
    second.is_refused(&waiting, "it is held").await?;
    first.release(&left).await?;
    holder.release(&held).await?;
    second.take(&waiting).await?;
    Ok(())
}

pub(in crate::checks) async fn a_waiter_released_at_its_turn_passes_it_on(
    context: &Context,
) -> Verdict {
    let (holder, first) = context.pair().await?;
    let second = context.connect().await?;
    for (left, waiting) in context.all_that_wait()?.into_iter().zip(context.all_that_wait()?) {
        let held = context.long_claim()?;
        holder.take(&held).await?;
        first.is_refused(&left, "it is held").await?;
        let taken = second.is_refused(&waiting, "it is held").await?;
        holder.release(&held).await?;
        // It is the first one's turn, which it does not know yet; it may even hold the lock.
        first.release(&left).await?;
        // It may be one too many to be told for now.
        if context.capabilities().notification && !taken.is_unheard() {
            let what = "news for the waiter behind one that gave up at its turn";
            context.promptly(what, second.listen_until_granted(&waiting)).await??;
        } else {
            second.take(&waiting).await?;
        }
        second.release(&waiting).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn places_are_served_in_order(context: &Context) -> Verdict {
    let holder = context.connect().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    let is_always = context.capabilities().fairness == Fairness::Fifo;
    let mut queue = Vec::new();
    for place in 0..MANY {
        let (connection, claim) = (context.connect().await?, context.long_claim()?);
        let asks_for_it = !is_always || place % 2 == 1;
        let claim = if asks_for_it { claim.fair() } else { claim.waiting() };
        connection.is_refused(&claim, "it is held").await?;
        queue.push((connection, claim));
    }
    holder.release(&held).await?;
    while !queue.is_empty() {
        for (later, claim) in queue[1..].iter().rev() {
            later.is_refused(claim, "another had waited for longer").await?;
        }
        let (first, claim) = queue.remove(0);
        first.take(&claim).await?;
        first.release(&claim).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_waiter_keeps_its_place(context: &Context) -> Verdict {
    context.needs_long_leases()?;
    let (holder, first) = context.pair().await?;
    let second = context.connect().await?;
    let held = context.long_claim()?;
    // The place of the later one lasts without an ask, so that it is the next if the first has none.
    let [early, late] = [context.claim()?.fair(), context.long_claim()?.fair()];
    holder.take(&held).await?;
    first.is_refused(&early, "it is held").await?;
    second.is_refused(&late, "it is held").await?;
    for _ in 0..8 {
        // As seldom as the engine asks.
        tokio::time::sleep(early.ttl() * 2 / 5).await;
        first.is_refused(&early, "it is held").await?;
    }
    holder.release(&held).await?;
    second.is_refused(&late, "another had waited for longer and never ceased to ask").await?;
    first.take(&early).await?;
    Ok(())
}

pub(in crate::checks) async fn a_try_does_not_overtake_the_queue(context: &Context) -> Verdict {
    does_not_overtake(context, context.long_claim()?).await
}

pub(in crate::checks) async fn a_plain_waiter_does_not_overtake_the_queue(
    context: &Context,
) -> Verdict {
    does_not_overtake(context, context.long_claim()?.waiting()).await
}

pub(in crate::checks) async fn a_try_does_not_overtake_at_the_end_of_a_lease(
    context: &Context,
) -> Verdict {
    context.needs_long_leases()?;
    let (holder, waiter) = context.pair().await?;
    let other = context.connect().await?;
    let others = [context.long_claim()?].into_iter().chain(context.all_that_wait()?);
    for late in others {
        let (held, waiting) = (context.claim()?, context.long_claim()?.fair());
        holder.take(&held).await?;
        waiter.is_refused(&waiting, "it is held").await?;
        other.is_refused(&late, "it is held").await?;
        // Nobody releases it, and nobody asks meanwhile.
        tokio::time::sleep(held.ttl() * 3 / 2).await;
        other.is_refused(&late, "a fair claim has waited for longer").await?;
        waiter.ask_until_granted(context, &waiting, context.expiry(held.ttl())).await?;
        other.release(&late).await?;
        waiter.release(&waiting).await?;
    }
    Ok(())
}

async fn does_not_overtake(context: &Context, late: Claim) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let other = context.connect().await?;
    let (held, waiting) = (context.long_claim()?, context.long_claim()?.fair());
    holder.take(&held).await?;
    waiter.is_refused(&waiting, "it is held").await?;
    holder.release(&held).await?;
    for connection in [&other, &holder] {
        connection.is_refused(&late, "a fair claim waits for it").await?;
    }
    waiter.take(&waiting).await?;
    Ok(())
}

pub(in crate::checks) async fn a_pushed_grant_lasts_from_the_last_ask(
    context: &Context,
) -> Verdict {
    let mut are_pushed = false;
    for waiting in context.all_that_wait()? {
        are_pushed |= pushed_grant_lasts(context, &waiting.with_ttl(context.odd())).await?;
    }
    match are_pushed {
        true => Ok(()),
        false => Err(Stop::DoesNotApply("the driver pushes no grants".into())),
    }
}

/// Whether the claim is told of a grant.
async fn pushed_grant_lasts(context: &Context, waiting: &Claim) -> Verdict<bool> {
    let (holder, waiter) = context.pair().await?;
    let other = context.connect().await?;
    let (held, ttl) = (context.long_claim()?, waiting.ttl());
    holder.take(&held).await?;
    let asked = settle(&waiter, waiting, ttl / 8).await?;
    tokio::time::sleep(ttl / 4).await;
    // Begins later than the lease from the last ask, and earlier than a fresh one would.
    let between = Claim::new(context.name("between-@")?, ttl);
    holder.take(&between).await?;
    tokio::time::sleep(ttl / 4).await;
    holder.release(&held).await?;
    let pushed = match context.promptly("news of a release", waiter.changed(waiting)).await? {
        Change::Granted(grant) => grant,
        Change::Lost => fail!("the driver says that the place of a waiter was lost"),
        _ => {
            waiter.release(waiting).await?;
            holder.release(&between).await?;
            return Ok(false);
        }
    };
    // A backend may grant more than was asked for: whole seconds, or a least lease of its own.
    let lease = match pushed.vouched() {
        Vouch::Lease { ttl: granted, .. } => ttl.max(granted),
        _ => ttl,
    };
    let (next, limit) = (context.claim()?, context.expiry(lease));
    let after = Claim::new(between.name().clone(), ttl);
    let (freed, over) = tokio::try_join!(
        other.ask_until_granted(context, &next, limit),
        holder.ask_until_granted(context, &after, limit)
    )?;
    let lasted = freed.granted.saturating_duration_since(asked);
    ensure!(
        lasted + lease / 100 + Duration::from_millis(2) >= lease,
        "a pushed grant was over {lasted:?} after the ask it counts from; the lease is {lease:?}"
    );
    is_as_vouched(&freed, pushed.vouched())?;
    if let Some(refused) = freed.refused {
        let longer = refused.saturating_duration_since(over.granted);
        ensure!(
            longer.is_zero(),
            "a pushed grant lasted for {longer:?} longer than a lease that began after the ask it \
             counts from, {:?} after it in all; the lease is {lease:?}",
            refused.saturating_duration_since(asked)
        );
    }
    other.release(&next).await?;
    holder.release(&after).await?;
    Ok(true)
}

pub(in crate::checks) async fn a_refusal_voids_an_earlier_push(context: &Context) -> Verdict {
    for waiting in context.all_that_wait()? {
        let waiting = waiting.with_ttl(context.ttl());
        let (holder, waiter) = context.pair().await?;
        let other = context.connect().await?;
        let (held, next) = (context.long_claim()?, context.long_claim()?);
        holder.take(&held).await?;
        settle(&waiter, &waiting, waiting.ttl() / 8).await?;
        // What is pushed now runs out before anybody listens.
        holder.release(&held).await?;
        other.ask_until_granted(context, &next, context.expiry(waiting.ttl())).await?;
        waiter.is_refused(&waiting, "another has it by now").await?;
        for _ in 0..3 {
            let news = timeout(waiting.ttl() / 8, waiter.changed(&waiting)).await;
            ensure!(
                !matches!(news, Ok(Change::Granted(_))),
                "a waiter was told of a grant that was over before its last ask was refused"
            );
        }
        waiter.release(&waiting).await?;
        other.release(&next).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn who_only_listens_is_handed_nothing(context: &Context) -> Verdict {
    let (holder, listener) = context.pair().await?;
    let other = context.connect().await?;
    let (held, listening) = (context.long_claim()?, context.claim()?.listening());
    holder.take(&held).await?;
    settle(&listener, &listening, listening.ttl() / 8).await?;
    holder.release(&held).await?;
    other.take(&context.long_claim()?).await?;
    let news = timeout(listening.ttl() / 8, listener.changed(&listening)).await;
    ensure!(
        !matches!(news, Ok(Change::Granted(_))),
        "a claim that does not wait was told of a grant"
    );
    listener.is_refused(&listening, "another has it by now").await.map(drop)
}

pub(in crate::checks) async fn who_listens_and_is_heard_is_told(context: &Context) -> Verdict {
    let (holder, listener) = context.pair().await?;
    let (held, listening) = (context.long_claim()?, context.claim()?.listening());
    holder.take(&held).await?;
    if !listener.is_refused(&listening, "it is held").await?.is_heard() {
        return Err(Stop::DoesNotApply("the driver tells nobody who only listens".into()));
    }
    settle(&listener, &listening, listening.ttl() / 8).await?;
    holder.release(&held).await?;
    context.promptly("news of a release", listener.changed(&listening)).await?;
    listener.take(&listening).await?;
    Ok(())
}

/// Asks until the driver has had no news for `glance`, and returns when the last refused ask left.
pub(super) async fn settle(
    waiter: &Connection,
    waiting: &Claim,
    glance: Duration,
) -> Verdict<Instant> {
    for _ in 0..100 {
        let asked = waiting.now();
        waiter.is_refused(waiting, "it is held").await?;
        if timeout(glance, waiter.changed(waiting)).await.is_err() {
            return Ok(asked);
        }
    }
    fail!("a waiter was woken 100 times while nothing changed")
}
