use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkit_core::{Error, Liveness, LockExt as _};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::connection::Event;
use crate::context::{BoxedLock, Client, Context, Verdict};

pub(in crate::checks) async fn a_try_answers_at_once(context: &Context) -> Verdict {
    let (holder, other) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let tried = context.promptly("the answer to a try", other.lock.try_acquire()).await??;
    ensure!(tried.is_none(), "a try got a lock that is held");
    let events = other.connection.events();
    ensure!(
        matches!(events[..], [Event::Refused(_)]),
        "a try on a held lock was more than one refused request: {events:?}"
    );
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_wait_is_limited_in_all(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let limit = context.ttl() / 2;
    let begun = tokio::time::Instant::now();
    let wait = waiter.lock.acquire_timeout(limit);
    match context.within(limit + context.patience(), "the end of a limited wait", wait).await? {
        Err(Error::TimedOut { .. }) => (),
        Err(error) => return Err(error.into()),
        Ok(_) => fail!("a waiter got a lock that is held"),
    }
    let waited = begun.elapsed();
    ensure!(waited >= limit, "a wait of {limit:?} was given up after {waited:?}");
    guard.release().await?;
    is_free(context).await
}

pub(in crate::checks) async fn a_wait_may_have_no_time(context: &Context) -> Verdict {
    let (holder, other) = (context.long_client().await?, context.long_client().await?);
    let guard = holder.lock.acquire_timeout(Duration::ZERO).await?;
    let wait = other.lock.acquire_timeout(Duration::ZERO);
    match context.promptly("the end of a wait of no time", wait).await? {
        Err(Error::TimedOut { .. }) => (),
        Err(error) => return Err(error.into()),
        Ok(_) => fail!("a wait of no time got a lock that is held"),
    }
    guard.release().await?;
    is_free(context).await
}

pub(in crate::checks) async fn a_wait_may_have_no_end(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let wait = tokio::spawn({
        let lock = waiter.lock.clone();
        async move { lock.acquire_timeout(Duration::MAX).await }
    });
    waits(context, &waiter).await?;
    guard.release().await?;
    context.promptly("a hold after an endless wait", wait).await???.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_release_wakes_a_waiter(context: &Context) -> Verdict {
    // A poll can come in between now and then, but not every time.
    for _ in 0..3 {
        let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
        let guard = context.acquire(&holder.lock).await?;
        let wait = acquire_in_queue(&waiter);
        waits(context, &waiter).await?;
        tokio::time::sleep(context.ttl() / 20).await;
        guard.release().await?;
        context.promptly("a hold after a release", wait).await???.release().await?;
        let events = waiter.connection.events();
        let refused = events.iter().rposition(|event| matches!(event, Event::Refused(_)));
        let after = &events[refused.map_or(0, |at| at + 1)..];
        if after.iter().any(|event| matches!(event, Event::Changed(_))) {
            return Ok(());
        }
    }
    fail!("a waiter got the lock by polling, three times out of three")
}

pub(in crate::checks) async fn waiters_are_served_in_order(context: &Context) -> Verdict {
    let holder = context.long_client().await?;
    let guard = context.acquire(&holder.lock).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for place in 0..5 {
        let waiter = context.long_client().await?;
        let (lock, served) = (waiter.queue(), served.clone());
        waiters.spawn(async move {
            let guard = lock.acquire().await?;
            served.lock().unwrap_or_else(PoisonError::into_inner).push(place);
            guard.release().await
        });
        waits(context, &waiter).await?;
    }
    guard.release().await?;
    let all = async {
        while let Some(waiter) = waiters.join_next().await {
            waiter??;
        }
        Verdict::Ok(())
    };
    context.promptly("the holds of five waiters", all).await??;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(served.is_sorted(), "waiters were served in the order {served:?}");
    Ok(())
}

pub(in crate::checks) async fn a_try_does_not_overtake_waiters(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let other = context.long_client().await?;
    let guard = context.acquire(&holder.lock).await?;
    let (enough, until) = oneshot::channel::<()>();
    let wait = tokio::spawn({
        let lock = waiter.queue();
        async move {
            let guard = lock.acquire().await?;
            // The end of the sender is the signal.
            _ = until.await;
            guard.release().await
        }
    });
    waits(context, &waiter).await?;
    guard.release().await?;
    for _ in 0..3 {
        let overtook = other.lock.try_acquire().await?;
        ensure!(overtook.is_none(), "a try overtook a fair waiter");
    }
    drop(enough);
    context.promptly("the hold of a fair waiter", wait).await???;
    Ok(())
}

pub(in crate::checks) async fn a_waiter_that_gave_up_is_passed_over(context: &Context) -> Verdict {
    let (holder, first) = (context.long_client().await?, context.long_client().await?);
    let second = context.long_client().await?;
    let guard = context.acquire(&holder.lock).await?;
    let short = tokio::spawn({
        let (lock, limit) = (first.queue(), context.ttl() / 2);
        async move { lock.acquire_timeout(limit).await }
    });
    waits(context, &first).await?;
    let wait = acquire_in_queue(&second);
    waits(context, &second).await?;
    let limit = context.ttl() / 2 + context.patience();
    let gave_up = context.within(limit, "the end of a limited wait", short).await??;
    ensure!(
        matches!(gave_up, Err(Error::TimedOut { .. })),
        "a limited wait for a held lock ended in {gave_up:?}"
    );
    guard.release().await?;
    context.promptly("the hold of the next waiter", wait).await???.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_dead_waiter_holds_nobody_up(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let dead = context.connect().await?;
    let claim = context.queued(context.claim()?);
    dead.is_refused(&claim, "it is held").await?;
    let wait = acquire_in_queue(&waiter);
    waits(context, &waiter).await?;
    guard.release().await?;
    let limit = context.expiry(claim.ttl());
    context.within(limit, "a hold behind a dead waiter", wait).await???.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_dead_holder_blocks_for_a_lease(context: &Context) -> Verdict {
    let (dead, waiter) = (context.connect().await?, context.client().await?);
    let claim = context.claim()?;
    dead.take(&claim).await?;
    let wait = waiter.lock.acquire();
    let limit = context.expiry(claim.ttl());
    context.within(limit, "a hold after that of a dead holder", wait).await??.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_long_wait_ends_in_a_good_hold(context: &Context) -> Verdict {
    let (holder, waiter) = (context.client().await?, context.client().await?);
    let other = context.client().await?;
    let guard = context.acquire(&holder.lock).await?;
    let wait = acquire_in_queue(&waiter);
    waits(context, &waiter).await?;
    tokio::time::sleep(3 * context.ttl()).await;
    guard.release().await?;
    let guard = context.promptly("a hold after a long wait", wait).await???;
    for _ in 0..8 {
        ensure!(guard.is_held(), "a hold was lost that had been waited for during several leases");
        let second = other.lock.try_acquire().await?;
        ensure!(second.is_none(), "two hold the lock, one of them after a long wait");
        tokio::time::sleep(context.ttl() / 4).await;
    }
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_thousand_waiters_are_served(context: &Context) -> Verdict {
    const WAITERS: usize = 1000;
    let client = context.long_client().await?;
    let guard = context.acquire(&client.lock).await?;
    let mut waiters = JoinSet::new();
    let mut wait_for = |lock: BoxedLock| {
        waiters.spawn(async move { lock.acquire().await?.release().await });
    };
    // Each of these has a place, where the driver has any.
    (0..WAITERS / 2).for_each(|_| wait_for(client.queue()));
    let places = if context.has_order() { WAITERS / 2 } else { 1 };
    let refused = client.connection.until(|events| {
        let is_refused = |event: &&Event| matches!(event, Event::Refused(_));
        events.iter().filter(is_refused).count() >= places
    });
    context.promptly("the places of 500 waiters", refused).await?;
    (WAITERS / 2..WAITERS).for_each(|_| wait_for(Arc::new(client.lock.clone())));
    guard.release().await?;
    while let Some(waiter) =
        context.promptly("the next of 1,000 holds", waiters.join_next()).await?
    {
        waiter??;
    }
    Ok(())
}

pub(in crate::checks) async fn a_wait_ends_while_nobody_answers(context: &Context) -> Verdict {
    let client = context.client().await?;
    context.acquire(&client.lock).await?.release().await?;
    context.fall_silent().await?;
    let tried =
        context.promptly("the end of a try while nobody answers", client.lock.try_acquire());
    ensure!(tried.await?.is_err(), "a try was answered while the backend was silent");
    let (limit, wait) = (context.ttl(), client.lock.acquire_timeout(context.ttl()));
    let end = "the end of a limited wait while nobody answers";
    match context.within(limit + context.patience(), end, wait).await? {
        Err(Error::TimedOut { .. }) => (),
        Err(error) if error.is_transient() => (),
        Err(error) => return Err(error.into()),
        Ok(_) => fail!("a waiter got a lock while the backend was silent"),
    }
    context.speak().await?;
    let limit = context.expiry(context.ttl()) + context.patience();
    let guard = context.within(limit, "a hold after a silence", client.lock.acquire()).await??;
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_wait_outlives_a_cut(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let wait = acquire_in_queue(&waiter);
    waits(context, &waiter).await?;
    context.sever().await?;
    // The release may need more than one try now.
    drop(guard);
    let hold = context.promptly("a hold after a cut", wait).await???;
    match hold.release().await {
        // Where connections keep holds, the end of the holder's may grant the lock to a waiter
        // whose own is cut only then.
        Err(Error::Lost { .. }) if context.capabilities().liveness != Liveness::Lease => {
            let again = waiter.queue();
            context.promptly("a hold after a loss", again.acquire()).await??.release().await?;
        }
        outcome => outcome?,
    }
    Ok(())
}

pub(super) fn acquire_in_queue(
    client: &Client,
) -> JoinHandle<lockkit_core::Result<lockkit_core::LockGuard>> {
    let lock = client.queue();
    tokio::spawn(async move { lock.acquire().await })
}

/// Returns when the client has been refused, so that it waits.
pub(super) async fn waits(context: &Context, client: &Client) -> Verdict {
    let is_refused = |event: &Event| matches!(event, Event::Refused(_));
    let refused = client.connection.until(|events| events.iter().any(is_refused));
    context.promptly("the first refusal of a waiter", refused).await
}

async fn is_free(context: &Context) -> Verdict {
    let client = context.long_client().await?;
    context.promptly("a hold of the free lock", client.lock.acquire()).await??.release().await?;
    Ok(())
}
