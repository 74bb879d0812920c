use lockkit_core::Label;
use lockkit_core::driver::{Attempt, Claim, Driver as _, OwnerId, Release};

use super::inspection::{are_seen_waiting, is_nobodys, is_of, is_seen, is_seen_free};
use crate::connection::Connection;
use crate::context::{Context, Verdict};
use crate::names;

pub(in crate::checks) async fn a_broken_hold_is_over(context: &Context) -> Verdict {
    let (holder, outside) = context.pair().await?;
    let name = context.name("lock-@")?;
    is_nobodys(&outside, &name, None, "nobody has asked for it").await?;
    for is_named in [true, false] {
        let broken = context.long_claim()?.with_label(Label::new("the broken")?);
        let token = holder.take(&broken).await?.fencing_token();
        let owner = is_named.then_some(broken.owner());
        match outside.break_hold(&name, owner).await? {
            Some(was) => is_of(&was, &broken, token)?,
            None => fail!("the break of a hold found nobody"),
        }
        is_seen_free(context, &outside, &name, "its hold was broken").await?;
        is_nobodys(&outside, &name, owner, "it was broken before").await?;
        if is_named {
            holder.is_lost(&broken, "its hold was broken").await?;
        } else {
            is_not_released(&holder, &broken).await?;
        }
        is_seen_free(context, &outside, &name, "its hold was broken").await?;

        let next = context.long_claim()?;
        let second = outside.take(&next).await?.fencing_token();
        ensure!(
            token.is_none() || token < second,
            "after a hold with token {token:?} was broken came one with {second:?}"
        );
        holder.is_lost(&broken, "another owner holds the lock since it was broken").await?;
        is_not_released(&holder, &broken).await?;
        outside.keep(&next).await?;
        outside.release(&next).await?;
    }
    Ok(())
}

async fn is_not_released(holder: &Connection, broken: &Claim) -> Verdict {
    let answer = holder.release(broken).await?;
    ensure!(answer == Release::NotHeld, "the release of a broken hold was answered {answer:?}");
    Ok(())
}

pub(in crate::checks) async fn a_broken_hold_frees_the_lock_for_waiters(
    context: &Context,
) -> Verdict {
    let (holder, first) = context.pair().await?;
    let (second, outside) = context.pair().await?;
    let held = context.long_claim()?;
    let [early, late] =
        [context.queued(context.long_claim()?), context.queued(context.long_claim()?)];
    holder.take(&held).await?;
    first.is_refused(&early, "it is held").await?;
    second.is_refused(&late, "it is held").await?;
    outside.break_hold(held.name(), None).await?;
    if context.has_order() {
        second.is_refused(&late, "another had waited for longer").await?;
        outside.is_refused(&context.long_claim()?, "a fair claim waits for it").await?;
    }
    let mut waiters = [(&first, &early), (&second, &late)];
    // Without an order, the backend may have handed it to either.
    if !context.has_order() && matches!(first.try_acquire(&early).await?, Attempt::Taken(_)) {
        waiters.reverse();
    }
    let [(next, claim), (last, waiting)] = waiters;
    next.take(claim).await?;
    outside.break_hold(held.name(), Some(claim.owner())).await?;
    last.take(waiting).await?;
    holder.is_lost(&held, "its hold was broken, and two had the lock since").await
}

pub(in crate::checks) async fn a_break_wakes_who_listens(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let outside = context.connect().await?;
    let before = context.all_that_wait()?.into_iter().map(|waiting| (false, waiting));
    let later = context.all_that_wait()?.into_iter().map(|waiting| (true, waiting));
    for (is_later, waiting) in before.chain(later) {
        let held = context.long_claim()?;
        holder.take(&held).await?;
        waiter.is_refused(&waiting, "it is held").await?;
        let granted = if is_later {
            let later = context.ttl() / 4;
            let break_later = async {
                tokio::time::sleep(later).await;
                outside.break_hold(held.name(), None).await
            };
            let both = async { tokio::join!(waiter.listen_until_granted(&waiting), break_later) };
            let limit = later + context.patience();
            let (granted, broken) = context.within(limit, "news of a break", both).await?;
            broken?;
            granted
        } else {
            outside.break_hold(held.name(), None).await?;
            let granted = waiter.listen_until_granted(&waiting);
            context.promptly("news of a break before the listening", granted).await?
        };
        granted?;
        waiter.release(&waiting).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn only_the_named_owner_is_broken(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let outside = context.connect().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    let token = holder.take(&held).await?.fencing_token();
    waiter.is_refused(&waiting, "it is held").await?;
    for owner in [OwnerId::random(), waiting.owner()] {
        is_nobodys(&outside, held.name(), Some(owner), "another owner holds the lock").await?;
    }
    is_seen(&outside, &held, token).await?;
    if context.has_order() {
        are_seen_waiting(&outside.look(held.name()).await?, &[&waiting])?;
    }
    holder.keep(&held).await?;
    holder.release(&held).await?;
    waiter.take(&waiting).await?;
    is_nobodys(&outside, held.name(), Some(held.owner()), "it had released the lock").await?;
    let elsewhere = context.name("elsewhere-@")?;
    is_nobodys(&outside, &elsewhere, Some(waiting.owner()), "it holds another lock").await?;
    waiter.keep(&waiting).await
}

pub(in crate::checks) async fn a_break_for_an_owner_is_one_step(context: &Context) -> Verdict {
    let (holder, next) = context.pair().await?;
    let outside = context.connect().await?;
    for _ in 0..20 {
        let (early, late) = (context.long_claim()?, context.long_claim()?);
        holder.take(&early).await?;
        let hand_over = async {
            holder.release(&early).await?;
            next.take(&late).await
        };
        let broken = outside.break_hold(early.name(), Some(early.owner()));
        let (broken, taken) = tokio::join!(broken, hand_over);
        broken?;
        taken?;
        next.is_kept(&late, "the break of an owner's hold ended that of its successor").await?;
        next.release(&late).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn an_inspected_name_is_never_code(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    // On a connection of its own, which outlives a session that is broken.
    let (keeper, witness) = (context.connect().await?, context.long_claim()?);
    let intact = keeper.take(&witness).await?.fencing_token();
    for shape in names::HOSTILE {
        let claim = Claim::new(context.name(shape)?, context.long());
        is_nobodys(&other, claim.name(), None, &format!("{:?} is free", claim.name())).await?;
        let token = holder.take(&claim).await?.fencing_token();
        is_seen(&other, &claim, token).await?;
        let broken = other.break_hold(claim.name(), Some(claim.owner())).await?;
        ensure!(broken.is_some(), "a hold of {:?} cannot be broken", claim.name());
        let why = format!("the hold of {:?} was broken", claim.name());
        is_seen_free(context, &other, claim.name(), &why).await?;
        is_seen(&other, &witness, intact).await?;
        keeper.keep(&witness).await?;
    }
    Ok(())
}
