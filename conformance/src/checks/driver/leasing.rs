use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Claim, Clock, Driver as _, DriverError, Instant, Release, Renewal, Vouch,
};
use lockkit_core::{Capabilities, Holder};

use super::inspection::UNIT;
use crate::connection::{Connection, Freed};
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn a_lease_runs_out(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.claim()?;
    // However often it was asked for, it is one lease.
    for _ in 0..10 {
        holder.take(&claim).await?;
        holder.keep(&claim).await?;
    }
    watch(context, &other, &claim).await?;
    Ok(())
}

pub(in crate::checks) async fn a_lease_lasts(context: &Context) -> Verdict {
    for (number, kind) in context.kinds().into_iter().enumerate() {
        let name = context.name(&format!("lock{number}-@"))?;
        lasts(context, kind(Claim::new(name, context.ttl()))).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_lease_is_not_rounded_down(context: &Context) -> Verdict {
    for (number, kind) in context.kinds().into_iter().enumerate() {
        let name = context.name(&format!("lock{number}-@"))?;
        lasts(context, kind(Claim::new(name, context.odd()))).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn the_shortest_lease_is_kept(context: &Context) -> Verdict {
    lasts(context, context.claim()?.with_ttl(context.capabilities().min_ttl)).await
}

/// Takes the lock and watches the lease from its beginning to its end.
async fn lasts(context: &Context, claim: Claim) -> Verdict {
    let (holder, other) = context.pair().await?;
    let asked = claim.now();
    // A request for a very short lease may well be too late.
    let vouch = holder.take_after_trouble(context, &claim).await?.vouched();
    let freed = watch(context, &other, &claim).await?;
    has_lasted(&freed, asked, claim.ttl(), "it was granted")?;
    is_as_vouched(&freed, vouch)
}

pub(in crate::checks) async fn a_renewal_is_a_full_lease(context: &Context) -> Verdict {
    let renew = async |holder: &Connection, claim: &Claim| holder.keep_vouched(claim).await;
    lasts_from(context, renew, "it was renewed").await
}

pub(in crate::checks) async fn a_repeated_ask_refreshes(context: &Context) -> Verdict {
    let ask = async |holder: &Connection, claim: &Claim| Ok(holder.take(claim).await?.vouched());
    lasts_from(context, ask, "its owner asked again").await
}

/// Refreshes a lease after part of it: a half, and so little that a driver may think it need not be.
async fn lasts_from(
    context: &Context,
    refresh: impl AsyncFn(&Connection, &Claim) -> Verdict<Vouch>,
    what: &str,
) -> Verdict {
    for part in [2, 10] {
        let (holder, other) = context.pair().await?;
        let claim = Claim::new(context.name(&format!("lock{part}-@"))?, context.odd());
        holder.take(&claim).await?;
        tokio::time::sleep(claim.ttl() / part).await;
        let asked = claim.now();
        let vouch = refresh(&holder, &claim).await?;
        let freed = watch(context, &other, &claim).await?;
        has_lasted(&freed, asked, claim.ttl(), what)?;
        is_as_vouched(&freed, vouch)?;
    }
    Ok(())
}

pub(in crate::checks) async fn no_request_shortens_a_lease(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let Capabilities { min_ttl, max_ttl, .. } = context.capabilities();
    // Where the usual lease is the shortest there is, nothing shorter could be asked for.
    let claim = context.claim()?.with_ttl(context.ttl().max(2 * min_ttl).min(max_ttl));
    let short = (claim.ttl() / 2).max(min_ttl);
    let (shorter, stranger) = (claim.clone().with_ttl(short), context.claim()?.with_ttl(short));
    let asked = claim.now();
    // With short leases, drivers wait only briefly: what is not answered is asked again, as long as
    // more of the lease is left than is asked for.
    let until = asked + short / 2;
    for ask in [&claim, &shorter] {
        match answered(until, || holder.try_acquire(ask)).await? {
            Attempt::Granted(_) => (),
            _ => fail!("a lock that was free or the claim's own was refused"),
        }
    }
    match answered(until, || holder.renew(&shorter)).await? {
        Renewal::Held(_) => (),
        _ => fail!("the renewal of a hold that stands was answered `Lost`"),
    }
    match answered(until, || other.renew(&stranger)).await? {
        Renewal::Lost => (),
        _ => fail!("a claim was renewed, although another owner holds the lock"),
    }
    match answered(until, || other.try_acquire(&stranger)).await? {
        Attempt::Taken(_) => (),
        _ => fail!("the lock was granted, although it is held"),
    }
    answered(until, || other.release(&stranger)).await?;
    let freed = watch(context, &other, &claim).await?;
    has_lasted(&freed, asked, claim.ttl(), "it was granted, and less was asked for afterwards")
}

pub(in crate::checks) async fn a_renewal_may_be_for_longer(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.claim()?;
    let longer = (claim.ttl() + context.odd()).min(context.capabilities().max_ttl);
    let longer = claim.clone().with_ttl(longer);
    holder.take(&claim).await?;
    let asked = claim.now();
    let vouch = holder.keep_vouched(&longer).await?;
    let freed = watch(context, &other, &longer).await?;
    has_lasted(&freed, asked, longer.ttl(), "it was renewed")?;
    is_as_vouched(&freed, vouch)
}

pub(in crate::checks) async fn a_lease_is_its_own(context: &Context) -> Verdict {
    let release = async |holder: &Connection, _: &Connection, claim: &Claim| {
        holder.release(claim).await?;
        Ok(())
    };
    let itself = |context: &Context, claim: &Claim| claim.clone().with_ttl(context.ttl());
    inherits_nothing(context, &[Context::rival, itself], release).await
}

pub(in crate::checks) async fn a_lease_after_a_break_is_its_own(context: &Context) -> Verdict {
    let revoke = async |_: &Connection, other: &Connection, claim: &Claim| {
        context.revoke_from(other, claim).await
    };
    inherits_nothing(context, &[Context::rival], revoke).await
}

/// Claims of each kind end long leases early, and those that come next get short ones.
async fn inherits_nothing(
    context: &Context,
    next: &[fn(&Context, &Claim) -> Claim],
    end: impl AsyncFn(&Connection, &Connection, &Claim) -> Verdict,
) -> Verdict {
    context.needs_long_leases()?;
    let (holder, other) = context.pair().await?;
    let mut heirs = Vec::new();
    for (number, kind) in context.kinds().into_iter().enumerate() {
        for (place, next) in next.iter().enumerate() {
            let name = context.name(&format!("lock{number}-{place}-@"))?;
            let long = kind(Claim::new(name, context.long()));
            holder.take(&long).await?;
            end(&holder, &other, &long).await?;
            let heir = next(context, &long);
            holder.take(&heir).await?;
            heirs.push(heir);
        }
    }
    for heir in &heirs {
        watch(context, &other, heir).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn the_longest_lease_is_kept(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.claim()?.with_ttl(context.capabilities().max_ttl);
    holder.take(&claim).await?;
    holder.keep(&claim).await?;
    tokio::time::sleep(context.ttl() / 4).await;
    let short = context.claim()?;
    let taken = other.is_refused(&short, "it is held for the longest lease there is").await?;
    is_long(context, &claim, taken.remaining())?;
    if context.capabilities().inspection {
        let status = other.look(claim.name()).await?;
        is_long(context, &claim, status.holder().and_then(Holder::remaining))?;
    }
    let answer = holder.release(&claim).await?;
    ensure!(answer == Release::Freed, "the release of the longest lease was {answer:?}");
    other.take(&short).await?;
    Ok(())
}

/// Most of a lease that has just begun is left, where that is told.
fn is_long(context: &Context, claim: &Claim, remaining: Option<Duration>) -> Verdict {
    let Some(remaining) = remaining else { return Ok(()) };
    ensure!(
        remaining + context.expiry(context.ttl()) >= claim.ttl(),
        "of a lease of {:?} that has just begun, {remaining:?} is left",
        claim.ttl()
    );
    Ok(())
}

pub(in crate::checks) async fn a_refusal_is_not_wrong_about_the_end(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    // Long enough for an error of a unit not to be taken for rounding.
    let claim = context.claim()?.with_ttl((10 * context.ttl()).min(context.long()));
    holder.take(&claim).await?;
    // It may have been rounded up, and so may the lease.
    let limit = claim.ttl() + margin(claim.ttl()).max(2 * UNIT);
    for _ in 0..3 {
        let taken = other.is_refused(&context.claim()?, "it is held").await?;
        if let Some(remaining) = taken.remaining() {
            ensure!(
                remaining <= limit,
                "a refusal says that a lease of {:?} goes on for {remaining:?}",
                claim.ttl()
            );
        }
        tokio::time::sleep(context.ttl() / 8).await;
    }
    Ok(())
}

/// Asks again after trouble that may pass, up to `until`.
async fn answered<T, F>(until: Instant, ask: impl Fn() -> F) -> Result<T, DriverError>
where
    F: Future<Output = Result<T, DriverError>>,
{
    loop {
        match ask().await {
            Err(error) if error.kind().is_transient() && Clock::system().now() < until => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            answer => return answer,
        }
    }
}

/// Asks over and over until the lease of another has run out, in the way in which `held` was asked
/// for.
async fn watch(context: &Context, other: &Connection, held: &Claim) -> Verdict<Freed> {
    other.ask_until_granted(context, &context.rival(held), context.expiry(held.ttl())).await
}

/// The lease was asked for after `since`, so nobody else may have been granted the lock before a
/// full `ttl` from then. A slow machine can only make this time longer.
fn has_lasted(freed: &Freed, since: Instant, ttl: Duration, what: &str) -> Verdict {
    let lasted = freed.granted.saturating_duration_since(since);
    ensure!(lasted + margin(ttl) >= ttl, "a lease of {ttl:?} was over {lasted:?} after {what}");
    Ok(())
}

/// Nobody else was granted the lock while the driver vouched for it, which is how long the engine
/// believes in it.
pub(super) fn is_as_vouched(freed: &Freed, vouch: Vouch) -> Verdict {
    match vouch {
        Vouch::Lease { since, ttl } => {
            has_lasted(freed, since, ttl, "the time since when it is vouched for")
        }
        Vouch::WhileAlive => fail!("a lease is vouched for for as long as the process lives"),
        // Since the request, from which the lease has lasted.
        _ => Ok(()),
    }
}

/// By how much clocks may differ: what the engine allows for as well.
fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}
