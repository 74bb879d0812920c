use lockkit_core::driver::Driver as _;

use crate::context::{Context, Verdict};

pub(in crate::checks) async fn only_the_owner_renews(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    for connection in [&other, &holder] {
        connection.is_lost(&context.long_claim()?, "another owner holds the lock").await?;
    }
    holder.keep(&held).await
}

pub(in crate::checks) async fn a_waiter_cannot_renew(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    holder.take(&held).await?;
    other.is_refused(&waiting, "it is held").await?;
    other.is_lost(&waiting, "it only waits").await?;
    other.is_refused(&waiting, "it is held; the waiter had only renewed").await?;
    holder.keep(&held).await
}

pub(in crate::checks) async fn a_renewal_never_recreates(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.long_claim()?;
    holder.is_lost(&claim, "it never asked").await?;
    holder.take(&claim).await?;
    holder.keep(&claim).await?;
    holder.release(&claim).await?;
    holder.is_lost(&claim, "it was released").await?;
    other.take(&context.long_claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn an_expired_hold_is_not_renewed(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (stale, next) = (context.claim()?, context.long_claim()?);
    holder.take(&stale).await?;
    context.outlive(stale.ttl()).await?;
    holder.is_lost(&stale, "its lease had run out").await?;
    other.take(&next).await?;
    Ok(())
}

pub(in crate::checks) async fn a_stale_claim_cannot_renew(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (stale, held) = (context.claim()?, context.long_claim()?);
    holder.take(&stale).await?;
    other.ask_until_granted(context, &held, context.expiry(stale.ttl())).await?;
    holder.is_lost(&stale, "another owner holds the lock since its lease ran out").await?;
    other.keep(&held).await
}

pub(in crate::checks) async fn a_revoked_hold_is_lost(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (revoked, held) = (context.long_claim()?, context.long_claim()?);
    holder.take(&revoked).await?;
    context.revoke(revoked.name()).await?;
    holder.is_lost(&revoked, "the lock was taken away from it").await?;
    other.take(&held).await?;
    holder.is_lost(&revoked, "another owner holds the lock since").await?;
    holder.release(&revoked).await?;
    other.keep(&held).await
}
