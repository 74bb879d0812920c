use std::time::Duration;

use lockkit_core::Liveness;
use lockkit_core::driver::{Claim, Driver as _, Vouch};

use super::waiting::settle;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn a_hold_is_vouched_for_as_it_ends(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let held = context.long_claim()?;
    for what in ["a grant", "a repeated ask"] {
        is_as_it_ends(context, &held, holder.take(&held).await?.vouched(), what)?;
    }
    is_as_it_ends(context, &held, holder.keep_vouched(&held).await?, "a renewal")?;
    holder.release(&held).await?;
    if context.capabilities().liveness == Liveness::Session {
        lasts_whatever_is_asked_for(context).await?;
    }
    if !context.capabilities().notification {
        return Ok(());
    }
    for waiting in context.all_that_wait()? {
        let held = context.long_claim()?;
        holder.take(&held).await?;
        settle(&waiter, &waiting, context.ttl() / 8).await?;
        holder.release(&held).await?;
        let granted = waiter.listen_until_granted(&waiting);
        let grant = context.promptly("news of a release", granted).await??;
        is_as_it_ends(context, &waiting, grant.vouched(), "the grant of a waiter")?;
        waiter.release(&waiting).await?;
    }
    Ok(())
}

/// A session is as long for a short claim as for a long one.
async fn lasts_whatever_is_asked_for(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let mut lengths = Vec::new();
    for (name, ttl) in [("short-@", context.ttl()), ("long-@", context.long())] {
        let claim = Claim::new(context.name(name)?, ttl);
        lengths.push(length(connection.take(&claim).await?.vouched()));
        lengths.push(length(connection.keep_vouched(&claim).await?));
        connection.release(&claim).await?;
    }
    ensure!(
        lengths.iter().all(|length| *length == lengths[0]),
        "the length of a session depends on the claim: asked for {:?} and {:?}, it was {lengths:?}",
        context.ttl(),
        context.long()
    );
    Ok(())
}

fn length(vouch: Vouch) -> Option<Duration> {
    match vouch {
        Vouch::Lease { ttl, .. } => Some(ttl),
        _ => None,
    }
}

/// `vouch` was answered by now.
fn is_as_it_ends(context: &Context, claim: &Claim, vouch: Vouch, what: &str) -> Verdict {
    let now = claim.now();
    match (context.capabilities().liveness, vouch) {
        (Liveness::Lease, Vouch::FromRequest) | (Liveness::Process, Vouch::WhileAlive) => Ok(()),
        (Liveness::Lease | Liveness::Session, Vouch::Lease { since, .. }) => {
            let ahead = since.saturating_duration_since(now);
            ensure!(ahead.is_zero(), "{what} is vouched for from {ahead:?} after its answer on");
            Ok(())
        }
        (liveness, vouch) => fail!("{what} that ends with its {liveness} is vouched for {vouch:?}"),
    }
}
