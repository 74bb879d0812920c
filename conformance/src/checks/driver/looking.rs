//! What looking at locks leaves as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkit_core::LockName;
use lockkit_core::driver::{Claim, Driver as _, Release};
use tokio::task::{JoinSet, yield_now};

use crate::connection::Connection;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn looking_changes_nothing(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let outside = context.connect().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    let connections = [&outside, &holder, &waiter];
    look_around(context, &connections).await?;
    let first = holder.take(&held).await?.fencing_token();
    look_around(context, &connections).await?;
    waiter.is_refused(&waiting, "it is held").await?;
    for _ in 0..3 {
        look_around(context, &connections).await?;
    }
    outside.is_refused(&context.long_claim()?, "it is held").await?;
    waiter.is_refused(&waiting, "it is held").await?;
    holder.keep(&held).await?;
    let again = holder.take(&held).await?.fencing_token();
    ensure!(first == again, "the token was {first:?}, and after looks {again:?}");
    let answer = holder.release(&held).await?;
    ensure!(answer == Release::Freed, "the release of a hold that was looked at was {answer:?}");
    look_around(context, &connections).await?;
    if context.has_order() {
        outside.is_refused(&context.long_claim()?, "a fair claim waits for it").await?;
    }
    waiter.take(&waiting).await?;
    waiter.release(&waiting).await?;
    look_around(context, &connections).await?;
    outside.take(&context.long_claim()?).await?;
    Ok(())
}

pub(in crate::checks) async fn looking_keeps_nothing_alive(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let (other, outside) = context.pair().await?;
    let (held, waiting) = (context.claim()?, context.queued(context.claim()?));
    let next = context.queued(context.long_claim()?);
    holder.take(&held).await?;
    waiter.is_refused(&waiting, "it is held").await?;
    let looks = async {
        loop {
            look_around(context, &[&outside, &holder, &waiter]).await?;
            tokio::time::sleep(held.ttl() / 10).await;
        }
    };
    // The end of a hold and then that of a place.
    let limit = held.ttl() + context.expiry(waiting.ttl());
    tokio::select! {
        freed = other.ask_until_granted(context, &next, limit) => freed.map(drop),
        stop = looks => stop,
    }
}

pub(in crate::checks) async fn looking_disturbs_nobody(context: &Context) -> Verdict {
    let (one, other) = context.pair().await?;
    let (name, done) = (context.name("lock-@")?, Arc::new(AtomicBool::new(false)));
    let mut looks = JoinSet::new();
    for connection in [context.connect().await?, one.clone()] {
        let (name, done) = (name.clone(), done.clone());
        looks.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                connection.look(&name).await?;
                connection.held(name.namespace()).await?;
                yield_now().await;
            }
            Verdict::Ok(())
        });
    }
    for connection in [&one, &other].repeat(20) {
        let claim = context.long_claim()?;
        yield_now().await;
        connection.take(&claim).await?;
        yield_now().await;
        connection.keep(&claim).await?;
        yield_now().await;
        let answer = connection.release(&claim).await?;
        ensure!(
            answer == Release::Freed,
            "the release of a hold, while others look, was {answer:?}"
        );
    }
    done.store(true, Ordering::Relaxed);
    while let Some(look) = context.promptly("the end of a look", looks.join_next()).await? {
        look??;
    }
    Ok(())
}

pub(in crate::checks) async fn a_look_may_be_dropped_anywhere(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let [name, free] = ["held-@", "free-@"].map(|shape| context.name(shape));
    let (name, free) = (name?, free?);
    let held = Claim::new(name.clone(), context.long());
    connection.take(&held).await?;
    for turns in 0..8 {
        for way in 0..4 {
            let turns = async {
                for _ in 0..turns {
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                seen = look(&connection, way, &name, &free) => seen?,
                () = turns => (),
            }
            is_in_step(context, &connection).await?;
        }
    }
    connection.keep(&held).await
}

/// One of four ways to look from outside.
async fn look(connection: &Connection, way: usize, name: &LockName, free: &LockName) -> Verdict {
    match way {
        0 => connection.look(name).await.map(drop),
        1 => connection.held(name.namespace()).await.map(drop),
        2 => connection.diagnose(name.namespace()).await.map(drop),
        _ => connection.break_hold(free, None).await.map(drop),
    }
}

/// Each request over the connection gets its own answer.
async fn is_in_step(context: &Context, connection: &Connection) -> Verdict {
    let claim = context.long_claim()?;
    connection.take(&claim).await?;
    connection.is_refused(&context.long_claim()?, "it is held, and a look was dropped").await?;
    connection.keep(&claim).await?;
    let answer = connection.release(&claim).await?;
    ensure!(
        answer == Release::Freed,
        "the release of a hold, after a look was dropped, was {answer:?}"
    );
    Ok(())
}

/// Everything that only reads, over each of the connections.
async fn look_around(context: &Context, connections: &[&Arc<Connection>]) -> Verdict {
    let name = context.name("lock-@")?;
    for connection in connections {
        connection.look(&name).await?;
        connection.held(name.namespace()).await?;
        connection.diagnose(name.namespace()).await?;
    }
    Ok(())
}
