use lockkit_core::{Error, Label, Liveness, LockExt as _, LockStatus};

use super::waiting::{acquire_in_queue, waits};
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn the_holds_of_all_lockers_are_seen(context: &Context) -> Verdict {
    let (one, other) = (context.long_client().await?, context.long_client().await?);
    let elsewhere = other.locker.lock(&context.text("elsewhere-@"))?;
    let guards = [context.acquire(&one.lock).await?, context.acquire(&elsewhere).await?];
    for locker in [&one.locker, &other.locker] {
        let listed = locker.held().await?;
        for guard in &guards {
            let looked = locker.look(guard.name().as_str()).await?;
            let is_its_own = |status: &&LockStatus| status.name() == guard.name();
            let Some(listed) = listed.iter().find(is_its_own) else {
                fail!("{:?} is held and not listed", guard.name());
            };
            for status in [listed, &looked] {
                let Some(holder) = status.holder() else { fail!("a held lock is seen free") };
                let seen = (holder.owner(), holder.fencing_token(), holder.label());
                let label = Label::of_this_process();
                let real = (guard.owner(), guard.fencing_token(), Some(&label));
                ensure!(seen == real, "{real:?} holds a lock, and is seen as {seen:?}");
            }
        }
    }
    for guard in guards {
        let name = guard.name().clone();
        guard.release().await?;
        let status = other.locker.look(name.as_str()).await?;
        ensure!(status.holder().is_none(), "a lock that was released is seen to be held");
        let is_listed = one.locker.held().await?.iter().any(|status| *status.name() == name);
        ensure!(!is_listed, "a lock that was released is listed as held");
    }
    Ok(())
}

pub(in crate::checks) async fn a_waiting_locker_is_seen(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let name = guard.name().as_str();
    let wait = waiter.queue();
    let seen = async {
        waits(context, &waiter).await?;
        Verdict::Ok(holder.locker.look(name).await?)
    };
    let seen = tokio::select! {
        waited = wait.acquire() => fail!("a wait for a held lock ended in {waited:?}"),
        seen = seen => seen?,
    };
    let labels: Vec<_> = seen.waiters().iter().map(|waiter| waiter.label().cloned()).collect();
    ensure!(labels == [Some(Label::of_this_process())], "one waits, and {labels:?} are seen");
    // The wait was dropped.
    let gone = async {
        while !holder.locker.look(name).await?.waiters().is_empty() {
            tokio::time::sleep(context.ttl() / 100).await;
        }
        Verdict::Ok(())
    };
    context.promptly("the end of a place whose owner gave up", gone).await??;
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_broken_holder_is_told(context: &Context) -> Verdict {
    let (holder, operator) = (context.client().await?, context.client().await?);
    let guard = context.acquire(&holder.lock).await?;
    let broken = operator.locker.break_hold(guard.name().as_str(), None).await?;
    let owner = broken.map(|broken| broken.owner());
    ensure!(owner == Some(guard.owner()), "{} was broken, and {owner:?} is named", guard.owner());
    let limit = match context.capabilities().liveness {
        Liveness::Lease => context.ttl(),
        _ => context.notice(),
    };
    context.within(limit, "the report of a loss", guard.lost()).await?;
    ensure!(!guard.is_held(), "a guard whose loss was reported says that it is held");
    match guard.release().await {
        Err(Error::Lost { .. }) => Ok(()),
        outcome => fail!("the release of a broken hold ended in {outcome:?}"),
    }
}

pub(in crate::checks) async fn a_break_serves_a_waiter(context: &Context) -> Verdict {
    let (holder, waiter) = (context.long_client().await?, context.long_client().await?);
    let operator = context.long_client().await?;
    let guard = context.acquire(&holder.lock).await?;
    let wait = acquire_in_queue(&waiter);
    waits(context, &waiter).await?;
    let name = guard.name().as_str();
    let broken = operator.locker.break_hold(name, Some(guard.owner())).await?;
    ensure!(broken.is_some(), "the break of a hold found nobody");
    let next = context.promptly("the hold of a waiter after a break", wait).await???;
    let (first, second) = (guard.fencing_token(), next.fencing_token());
    ensure!(
        first.is_none() || first < second,
        "after a hold with token {first:?} was broken came one with {second:?}"
    );
    let again = operator.locker.break_hold(name, Some(guard.owner())).await?;
    ensure!(again.is_none(), "a hold was broken twice");
    next.release().await?;
    Ok(())
}
