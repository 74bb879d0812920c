//! Several claims that wait in order for one lock over one connection, as the tasks of an
//! application do.

use std::sync::{Arc, Mutex, PoisonError};

use lockkit_core::driver::{Claim, Driver as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn places_of_one_connection_are_in_order(context: &Context) -> Verdict {
    let (holder, shared) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    let (mut queue, left) = stand(context, &shared).await?;
    shared.release(&left).await?;
    holder.release(&held).await?;
    while !queue.is_empty() {
        for later in queue[1..].iter().rev() {
            let why = "another claim of the same connection had waited for longer";
            shared.is_refused(later, why).await?;
        }
        let first = queue.remove(0);
        shared.take(&first).await?;
        shared.release(&first).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn who_shares_a_connection_is_told_in_turn(
    context: &Context,
) -> Verdict {
    let (holder, shared) = context.pair().await?;
    let held = context.long_claim()?;
    holder.take(&held).await?;
    let (queue, left) = stand(context, &shared).await?;
    let (served, mut waits) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for (place, claim) in queue.into_iter().enumerate() {
        let (shared, served) = (shared.clone(), served.clone());
        waits.spawn(async move {
            shared.listen_until_granted(&claim).await?;
            served.lock().unwrap_or_else(PoisonError::into_inner).push(place);
            shared.release(&claim).await?;
            Verdict::Ok(())
        });
    }
    // By then they all listen.
    _ = timeout(context.ttl() / 4, shared.changed(&left)).await;
    shared.release(&left).await?;
    holder.release(&held).await?;
    let all = async {
        while let Some(wait) = waits.join_next().await {
            wait??;
        }
        Verdict::Ok(())
    };
    context.promptly("the turns of all who share a connection", all).await??;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure!(served.is_sorted(), "who shares a connection was served in the order {served:?}");
    a_newcomer_takes_no_news(context, &holder, &shared).await
}

pub(in crate::checks) async fn who_shares_a_connection_is_told_after_another_gave_up(
    context: &Context,
) -> Verdict {
    let (holder, shared) = context.pair().await?;
    for (left, waiting) in context.all_that_wait()?.into_iter().zip(context.all_that_wait()?) {
        let held = context.long_claim()?;
        holder.take(&held).await?;
        shared.is_refused(&left, "it is held").await?;
        _ = timeout(context.ttl() / 8, shared.changed(&left)).await;
        let mut taken = shared.is_refused(&waiting, "it is held").await?;
        // By then it listens.
        if timeout(context.ttl() / 8, shared.changed(&waiting)).await.is_ok() {
            taken = shared.is_refused(&waiting, "it is held").await?;
        }
        shared.release(&left).await?;
        holder.release(&held).await?;
        // It may be one too many to be told for now.
        if taken.is_unheard() {
            shared.take(&waiting).await?;
        } else {
            let what = "news of a release, for who shares a connection with one that gave up";
            context.promptly(what, shared.listen_until_granted(&waiting)).await??;
        }
        shared.release(&waiting).await?;
    }
    Ok(())
}

/// What is told to one that shares the connection, as another comes. Between the two stands somebody
/// else, so that both have to be told.
async fn a_newcomer_takes_no_news(
    context: &Context,
    holder: &Connection,
    shared: &Connection,
) -> Verdict {
    let (other, held) = (context.connect().await?, context.long_claim()?);
    let [first, between, last] =
        [context.long_claim()?.fair(), context.long_claim()?.fair(), context.long_claim()?.fair()];
    holder.take(&held).await?;
    shared.is_refused(&first, "it is held").await?;
    other.is_refused(&between, "it is held").await?;
    for (connection, claim) in [(shared, &first), (&other, &between)] {
        _ = timeout(context.ttl() / 4, connection.changed(claim)).await;
        connection.is_refused(claim, "it is held").await?;
    }
    holder.release(&held).await?;
    shared.is_refused(&last, "others had waited for longer").await?;
    for (connection, claim) in [(shared, &first), (&other, &between), (shared, &last)] {
        context.promptly("its turn", connection.listen_until_granted(claim)).await??;
        connection.release(claim).await?;
    }
    Ok(())
}

/// Has six claims stand in the queue of a lock that is held. The one that is to give up is in the
/// middle.
async fn stand(context: &Context, shared: &Connection) -> Verdict<(Vec<Claim>, Claim)> {
    let mut queue = Vec::new();
    for _ in 0..6 {
        let claim = context.long_claim()?.fair();
        shared.is_refused(&claim, "it is held").await?;
        queue.push(claim);
    }
    let left = queue.remove(2);
    Ok((queue, left))
}
