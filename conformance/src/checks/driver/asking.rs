use std::sync::Arc;
use std::time::Duration;

use lockkit_core::LockName;
use lockkit_core::driver::{Attempt, Change, Claim, Driver as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn it_is_what_it_declares(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let (id, declared) = (connection.id(), connection.capabilities());
    ensure!(id == context.id(), "the driver calls itself `{id}`, the suite `{}`", context.id());
    ensure!(
        declared == context.capabilities(),
        "the driver declares {declared:?}, the suite was given {:?}",
        context.capabilities()
    );
    let (inspects, declared) = (connection.inspect().is_some(), declared.inspection);
    ensure!(inspects == declared, "inspection is declared as {declared}, and is {inspects}");
    Ok(())
}

pub(in crate::checks) async fn a_free_lock_is_granted(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    connection.take(&context.claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn a_held_lock_is_refused(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    holder.take(&context.long_claim()?).await?;
    for _ in 0..3 {
        other.is_refused(&context.long_claim()?, "another connection holds it").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn two_claims_of_one_connection_exclude_each_other(
    context: &Context,
) -> Verdict {
    let connection = context.connect().await?;
    connection.take(&context.long_claim()?).await?;
    let second = context.long_claim()?;
    connection.is_refused(&second, "another claim of the same connection holds it").await?;
    Ok(())
}

pub(in crate::checks) async fn a_refusal_comes_at_once(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let held = context.claim()?;
    holder.take(&held).await?;
    // Nobody renews: a claim that waits for the holder gets the lock when the lease has run out.
    let asked = held.now();
    match other.try_acquire(&context.claim()?).await? {
        Attempt::Granted(_) => fail!("the ask was not answered until the lock was free"),
        _ => {
            let took = held.now().saturating_duration_since(asked);
            ensure!(took < context.patience(), "the refusal took {took:?}");
        }
    }
    let held = Claim::new(context.name("long-@")?, context.long());
    holder.take(&held).await?;
    for kind in context.kinds() {
        let claim = || kind(Claim::new(held.name().clone(), context.ttl()));
        is_refused_quickly(context, &other, claim).await?;
    }
    Ok(())
}

/// One refusal may be slow for many reasons; all of several are slow only if refusals are.
async fn is_refused_quickly(
    context: &Context,
    other: &Connection,
    claim: impl Fn() -> Claim,
) -> Verdict {
    let (limit, mut quickest) = (context.ttl() / 5, Duration::MAX);
    for _ in 0..5 {
        let claim = claim();
        let asked = claim.now();
        other.is_refused(&claim, "it is held").await?;
        quickest = quickest.min(claim.now().saturating_duration_since(asked));
        if quickest < limit {
            return Ok(());
        }
    }
    fail!("each of several refusals took {quickest:?} or more; a fifth of the lease is {limit:?}")
}

pub(in crate::checks) async fn claims_over_separate_connections_get_one_grant(
    context: &Context,
) -> Verdict {
    each_time_one_of_eight_is_granted(context, &eight(context).await?).await
}

pub(in crate::checks) async fn claims_over_one_connection_get_one_grant(
    context: &Context,
) -> Verdict {
    each_time_one_of_eight_is_granted(context, &[context.connect().await?]).await
}

/// Several races between claims of each kind.
async fn each_time_one_of_eight_is_granted(
    context: &Context,
    connections: &[Arc<Connection>],
) -> Verdict {
    let name = context.name("lock-@")?;
    for kind in context.kinds() {
        for _ in 0..5 {
            one_of_eight_is_granted(context, connections, &name, kind).await?;
        }
    }
    Ok(())
}

pub(in crate::checks) async fn claims_to_what_ran_out_get_one_grant(context: &Context) -> Verdict {
    let (dead, connections) = (context.connect().await?, eight(context).await?);
    let mut held = Vec::new();
    for round in 0..5 {
        let claim = Claim::new(context.name(&format!("dead{round}-@"))?, context.ttl());
        dead.take(&claim).await?;
        held.push(claim);
    }
    context.outlive(context.ttl()).await?;
    for (claim, kind) in held.iter().zip(context.kinds().into_iter().cycle()) {
        one_of_eight_is_granted(context, &connections, claim.name(), kind).await?;
    }
    Ok(())
}

async fn eight(context: &Context) -> Verdict<Vec<Arc<Connection>>> {
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(context.connect().await?);
    }
    Ok(connections)
}

/// One race for a lock that nobody holds, and that nobody holds afterwards.
async fn one_of_eight_is_granted(
    context: &Context,
    connections: &[Arc<Connection>],
    name: &LockName,
    kind: fn(Claim) -> Claim,
) -> Verdict {
    let claim = || kind(Claim::new(name.clone(), context.long()));
    let start = Arc::new(Barrier::new(8));
    let mut asks = JoinSet::new();
    for connection in connections.iter().cycle().take(8) {
        let (start, connection, claim) = (start.clone(), connection.clone(), claim());
        asks.spawn(async move {
            start.wait().await;
            let answer = connection.try_acquire(&claim).await?;
            Verdict::Ok((connection, claim, answer))
        });
    }
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    while let Some(ask) = asks.join_next().await {
        match ask?? {
            (connection, claim, Attempt::Granted(_)) => granted.push((connection, claim)),
            (connection, claim, _) => refused.push((connection, claim)),
        }
    }
    // Before anybody lets go, so that none of them is handed the lock.
    for (connection, claim) in refused.iter().filter(|(_, claim)| claim.waits()) {
        connection.release(claim).await?;
    }
    if granted.is_empty() && context.is_by_votes() {
        // They were in each other's way, and no longer are.
        let claim = claim();
        connections[0].take(&claim).await?;
        granted.push((connections[0].clone(), claim));
    }
    ensure_always!(granted.len() <= 1, "{} of 8 claims got the lock", granted.len());
    ensure!(!granted.is_empty(), "none of 8 claims got the lock");
    for (connection, claim) in granted {
        connection.release(&claim).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_repeated_ask_is_the_same_grant(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.long_claim()?;
    let first = holder.take(&claim).await?.fencing_token();
    for _ in 0..3 {
        let again = holder.take(&claim).await?.fencing_token();
        ensure!(first == again, "the token was {first:?}, and on asking again {again:?}");
    }
    other.is_refused(&context.long_claim()?, "it is held").await?;
    // Asking four times makes one hold, which one release ends.
    holder.release(&claim).await?;
    other.take(&context.long_claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn a_repeated_ask_is_no_newcomer(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let name = context.name("lock-@")?;
    for kind in context.kinds() {
        let (held, waiting) =
            (kind(Claim::new(name.clone(), context.long())), context.long_claim()?);
        let waiting = waiting.fair();
        let first = holder.take(&held).await?.fencing_token();
        waiter.is_refused(&waiting, "it is held").await?;
        let Attempt::Granted(again) = holder.try_acquire(&held).await? else {
            fail!("a holder that asked again was refused while a fair claim waits")
        };
        let again = again.fencing_token();
        ensure!(first == again, "the token was {first:?}, and while another waits {again:?}");
        waiter.is_refused(&waiting, "it is held; its holder had asked again").await?;
        holder.release(&held).await?;
        waiter.take(&waiting).await?;
        waiter.release(&waiting).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn an_ask_after_release_is_a_new_grant(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let claim = context.long_claim()?;
    let first = holder.take(&claim).await?.fencing_token();
    holder.release(&claim).await?;
    let second = holder.take(&claim).await?.fencing_token();
    ensure!(
        first.is_none() || first < second,
        "the token was {first:?}, and after a release {second:?}"
    );
    other.is_refused(&context.long_claim()?, "it was taken anew").await?;
    Ok(())
}

pub(in crate::checks) async fn an_ask_after_expiry_is_a_new_grant(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let alone = Claim::new(context.name("alone-@")?, context.ttl());
    let first = holder.take(&alone).await?.fencing_token();
    context.outlive(alone.ttl()).await?;
    let again = holder.take(&alone).await?.fencing_token();
    ensure!(
        first.is_none() || first < again,
        "the token was {first:?}, and on asking again after the lease ran out {again:?}"
    );
    let (claim, between) = (context.claim()?, context.long_claim()?);
    let first = holder.take(&claim).await?.fencing_token();
    other.ask_until_granted(context, &between, context.expiry(claim.ttl())).await?;
    let second = other.take(&between).await?.fencing_token();
    other.release(&between).await?;
    let claim = claim.with_ttl(context.long());
    let third = holder.take(&claim).await?.fencing_token();
    ensure!(
        first.is_none() || first < second && second < third,
        "the token was {first:?}, that of the next owner {second:?}, and on asking again {third:?}"
    );
    other.is_refused(&context.long_claim()?, "it was taken anew").await?;
    // Whoever holds believes both of these without asking.
    let news = timeout(context.ttl() / 4, holder.changed(&claim)).await;
    ensure!(
        !matches!(news, Ok(Change::Lost | Change::Granted(_))),
        "a holder was told `{news:?}`, which is news of the hold before"
    );
    Ok(())
}

pub(in crate::checks) async fn a_try_leaves_nothing(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    other.is_refused(&context.long_claim()?, "it is held").await?;
    holder.release(&held).await?;
    // Had the refused claim left a place, it would be before these.
    let third = context.long_claim()?;
    holder.take(&third).await?;
    holder.release(&third).await?;
    other.take(&context.queued(context.long_claim()?)).await?;
    Ok(())
}
