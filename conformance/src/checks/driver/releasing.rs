use lockkit_core::driver::{Claim, Driver as _, Release};

use crate::context::{Context, Verdict};

pub(in crate::checks) async fn a_release_frees(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    for _ in 0..5 {
        let claim = context.long_claim()?;
        holder.take(&claim).await?;
        holder.release(&claim).await?;
        let next = context.long_claim()?;
        other.take(&next).await?;
        other.release(&next).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn release_answers_whether_it_freed(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    holder.take(&held).await?;
    other.is_refused(&waiting, "it is held").await?;
    let answers = [
        other.release(&waiting).await?,
        holder.release(&held).await?,
        holder.release(&held).await?,
    ];
    ensure!(
        answers == [Release::NotHeld, Release::Freed, Release::NotHeld],
        "the releases of a waiter, of a holder, and of the same once more were answered {answers:?}"
    );
    Ok(())
}

pub(in crate::checks) async fn release_before_any_ask_is_harmless(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let claim = context.long_claim()?;
    let answer = connection.release(&claim).await?;
    ensure!(answer == Release::NotHeld, "the release of what was never asked for was {answer:?}");
    connection.take(&claim).await?;
    let answer = connection.release(&claim).await?;
    ensure!(answer == Release::Freed, "the release of a hold was answered {answer:?}");
    Ok(())
}

pub(in crate::checks) async fn only_the_owner_releases(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    for connection in [&other, &holder] {
        let stranger = context.long_claim()?;
        connection.release(&stranger).await?;
        connection.is_refused(&stranger, "it is held; a stranger had released it").await?;
        connection.release(&stranger).await?;
    }
    other.is_refused(&context.long_claim()?, "it is held; a refused claim was released").await?;
    holder.keep(&held).await
}

pub(in crate::checks) async fn an_expired_hold_is_not_released(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let stale = context.claim()?;
    holder.take(&stale).await?;
    context.outlive(stale.ttl()).await?;
    let answer = holder.release(&stale).await?;
    ensure!(answer == Release::NotHeld, "a release after the lease ran out was {answer:?}");
    other.take(&context.long_claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn a_stale_claim_cannot_release(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (stale, held) = (context.claim()?, context.long_claim()?);
    holder.take(&stale).await?;
    other.ask_until_granted(context, &held, context.expiry(stale.ttl())).await?;
    let answer = holder.release(&stale).await?;
    ensure!(answer == Release::NotHeld, "a release after the lease ran out was {answer:?}");
    let third = context.long_claim()?;
    holder.is_refused(&third, "its holder's predecessor alone had released it").await?;
    other.keep(&held).await
}

pub(in crate::checks) async fn closing_one_connection_leaves_the_others_alone(
    context: &Context,
) -> Verdict {
    let (holder, other) = context.pair().await?;
    let held = context.long_claim()?;
    let elsewhere = Claim::new(context.name("elsewhere-@")?, context.long());
    holder.take(&held).await?;
    other.take(&elsewhere).await?;
    other.release(&elsewhere).await?;
    other.close().await;
    holder.keep(&held).await?;
    let third = context.connect().await?;
    third.is_refused(&context.long_claim()?, "it is held; another connection was closed").await?;
    Ok(())
}

pub(in crate::checks) async fn a_closed_connection_leaves_nothing_for_long(
    context: &Context,
) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let other = context.connect().await?;
    let (held, waiting) = (context.claim()?, context.queued(context.claim()?));
    holder.take(&held).await?;
    waiter.is_refused(&waiting, "it is held").await?;
    holder.close().await;
    waiter.close().await;
    // The end of a hold and then that of a place.
    let limit = held.ttl() + context.expiry(waiting.ttl());
    let next = context.queued(context.long_claim()?);
    other.ask_until_granted(context, &next, limit).await?;
    Ok(())
}
