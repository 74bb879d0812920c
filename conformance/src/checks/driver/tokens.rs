use lockkit_core::FencingToken;
use lockkit_core::driver::Driver as _;

use crate::context::{Context, Verdict};

pub(in crate::checks) async fn tokens_are_given_if_declared(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    let first = holder.take(&held).await?.fencing_token();
    waiter.is_refused(&waiting, "it is held").await?;
    holder.release(&held).await?;
    let second = waiter.take(&waiting).await?.fencing_token();
    let declared = context.capabilities().fencing;
    for token in [first, second] {
        ensure!(
            token.is_some() == declared,
            "fencing is declared as {declared}, and a grant has the token {token:?}"
        );
    }
    Ok(())
}

pub(in crate::checks) async fn tokens_rise_over_releases(context: &Context) -> Verdict {
    let (one, other) = context.pair().await?;
    let mut last = None;
    for _ in 0..5 {
        for connection in [&one, &one, &other] {
            let claim = context.long_claim()?;
            rises(&mut last, connection.take_token(&claim).await?)?;
            connection.release(&claim).await?;
        }
    }
    Ok(())
}

pub(in crate::checks) async fn tokens_rise_over_expiry(context: &Context) -> Verdict {
    let (one, other) = context.pair().await?;
    let mut last = None;
    let first = context.claim()?;
    rises(&mut last, one.take_token(&first).await?)?;
    let second = context.claim()?;
    other.ask_until_granted(context, &second, context.expiry(first.ttl())).await?;
    // The grant stands: the same token again.
    rises(&mut last, other.take_token(&second).await?)
}

pub(in crate::checks) async fn tokens_rise_over_connections(context: &Context) -> Verdict {
    let mut last = None;
    for _ in 0..5 {
        let (connection, claim) = (context.connect().await?, context.long_claim()?);
        rises(&mut last, connection.take_token(&claim).await?)?;
        connection.release(&claim).await?;
        connection.close().await;
    }
    Ok(())
}

pub(in crate::checks) async fn tokens_rise_over_revocation(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let mut last = None;
    for _ in 0..3 {
        let claim = context.long_claim()?;
        rises(&mut last, connection.take_token(&claim).await?)?;
        context.revoke(claim.name()).await?;
    }
    rises(&mut last, connection.take_token(&context.long_claim()?).await?)
}

pub(in crate::checks) async fn tokens_rise_over_a_cut(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let mut last = None;
    for _ in 0..3 {
        let claim = context.long_claim()?;
        connection.take_after_trouble(context, &claim).await?;
        rises(&mut last, connection.take_token(&claim).await?)?;
        connection.release(&claim).await?;
        context.sever().await?;
    }
    Ok(())
}

pub(in crate::checks) async fn tokens_rise_over_a_restart(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let mut last = None;
    for _ in 0..2 {
        let claim = context.long_claim()?;
        connection.take_after_trouble(context, &claim).await?;
        rises(&mut last, connection.take_token(&claim).await?)?;
        connection.release(&claim).await?;
        context.restart().await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_renewal_keeps_the_token(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let claim = context.long_claim()?;
    let first = connection.take_token(&claim).await?;
    for _ in 0..3 {
        connection.keep(&claim).await?;
    }
    let later = connection.take_token(&claim).await?;
    ensure!(first == later, "the token was {first}, and after renewals {later}");
    Ok(())
}

fn rises(last: &mut Option<FencingToken>, token: FencingToken) -> Verdict {
    if let Some(last) = *last {
        ensure!(last < token, "after a grant with token {last} came one with {token}");
    }
    *last = Some(token);
    Ok(())
}
