//! What comes of requests whose connection is cut before the answer is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkit_core::driver::{Attempt, Claim, Driver as _, DriverError, ErrorKind};
use tokio::task::{JoinSet, yield_now};

use super::silence::holds_nothing;
use crate::connection::Connection;
use crate::context::{Context, Verdict};

/// Enough for some to be on their way when it comes, whatever a driver has in order.
const ASKS: usize = 8;

/// Whether the cut comes between an ask and its answer is a matter of chance.
const ROUNDS: usize = 10;

pub(in crate::checks) async fn an_ask_that_was_cut_off_leaves_nothing(
    context: &Context,
) -> Verdict {
    let (connection, other) = context.pair().await?;
    let mut failed = Vec::new();
    for round in 0..ROUNDS {
        // The connection is one that works.
        let before = Claim::new(context.name(&format!("before-{round}-@"))?, context.long());
        connection.take_after_trouble(context, &before).await?;
        failed.extend(cut_off(context, &connection, round).await?);
    }
    // Time for what is still on its way to arrive.
    tokio::time::sleep(context.ttl() / 2).await;
    for (claim, error) in failed {
        match error.kind() {
            ErrorKind::Unknown => (),
            kind if kind.is_transient() => holds_nothing(context, &other, &claim, &error).await?,
            _ => return Err(error.into()),
        }
    }
    Ok(())
}

/// Cuts the connections while asks are under way, and returns those that failed.
async fn cut_off(
    context: &Context,
    connection: &Arc<Connection>,
    round: usize,
) -> Verdict<Vec<(Claim, DriverError)>> {
    let (is_cut, mut asks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for number in 0..ASKS {
        let name = context.name(&format!("cut-{round}-{number}-@"))?;
        let (connection, is_cut, ttl) = (connection.clone(), is_cut.clone(), context.long());
        asks.spawn(async move {
            // A cut may take longer than many an ask.
            while !is_cut.load(Ordering::Relaxed) {
                let claim = Claim::new(name.clone(), ttl);
                match connection.try_acquire(&claim).await {
                    Ok(Attempt::Granted(_)) => (),
                    Ok(_) => return None,
                    Err(error) => return Some((claim, error)),
                }
                // What this leaves is in nobody's way.
                if connection.release(&claim).await.is_err() {
                    return None;
                }
                yield_now().await;
            }
            None
        });
    }
    for _ in 0..round {
        yield_now().await;
    }
    context.sever().await?;
    is_cut.store(true, Ordering::Relaxed);
    let ended = context.promptly("the ends of asks that were cut off", asks.join_all()).await?;
    Ok(ended.into_iter().flatten().collect())
}
