use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Claim, Driver as _};
use lockkit_core::{LockName, Namespace};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::context::{Context, Verdict};
use crate::names;

pub(in crate::checks) async fn different_names_are_different_locks(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    for name in awkward(context)?.into_iter().chain(numbers(context)?) {
        let claim = Claim::new(name.clone(), context.long());
        let granted = connection.take(&claim).await;
        ensure!(granted.is_ok(), "{name:?} was refused, although it is held under no such name");
    }
    Ok(())
}

pub(in crate::checks) async fn the_same_name_is_the_same_lock(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    for name in awkward(context)? {
        let [held, second] = [(); 2].map(|()| Claim::new(name.clone(), context.long()));
        holder.take(&held).await?;
        other.is_refused(&second, &format!("another connection holds {name:?}")).await?;
        holder.release(&held).await?;
        other.take(&second).await?;
        other.release(&second).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn namespaces_are_apart(context: &Context) -> Verdict {
    let (connection, other) = context.pair().await?;
    let held: Vec<_> =
        easily_joined(context)?.into_iter().map(|name| Claim::new(name, context.long())).collect();
    for claim in &held {
        let granted = connection.take(claim).await;
        ensure!(granted.is_ok(), "{:?} was refused, although it is not held", claim.name());
    }
    if context.capabilities().inspection {
        let elsewhere = LockName::new(&context.namespace_beside("elsewhere-@")?, "a")?;
        let (status, broken) =
            (other.look(&elsewhere).await?, other.break_hold(&elsewhere, None).await?);
        ensure!(
            status.holder().is_none() && broken.is_none(),
            "{elsewhere:?} is held by nobody, and was seen as {status:?} and broken as {broken:?}"
        );
    }
    for claim in held {
        let second = Claim::new(claim.name().clone(), context.long());
        other.is_refused(&second, &format!("{:?} is held", claim.name())).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn different_names_have_different_queues(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let mut locks = Vec::new();
    for name in awkward(context)?.into_iter().chain(easily_joined(context)?) {
        let [held, waiting] = [(); 2].map(|()| Claim::new(name.clone(), context.long()));
        let waiting = waiting.fair();
        holder.take(&held).await?;
        waiter.is_refused(&waiting, &format!("{name:?} is held")).await?;
        locks.push((held, waiting));
    }
    // In a queue for several, whoever came last would not be the first.
    for (held, waiting) in locks.iter().rev() {
        holder.release(held).await?;
        let granted = waiter.take(waiting).await;
        ensure!(granted.is_ok(), "{:?} was refused to the only one who waits for it", held.name());
        waiter.release(waiting).await?;
    }
    Ok(())
}

pub(in crate::checks) async fn names_are_never_code(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let witness = context.long_claim()?;
    holder.take(&witness).await?;
    for shape in names::HOSTILE {
        let name = context.name(shape)?;
        let [held, waiting] = [(); 2].map(|()| Claim::new(name.clone(), context.long()));
        let waiting = context.queued(waiting);
        other.take(&held).await?;
        other.keep(&held).await?;
        holder.is_refused(&waiting, &format!("{name:?} is held")).await?;
        other.release(&held).await?;
        holder.take(&waiting).await?;
        holder.release(&waiting).await?;
        let ended = format!("the use of a lock named {name:?} ended the hold of another lock");
        holder.is_kept(&witness, &ended).await?;
        other.is_refused(&context.long_claim()?, "it is held").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_release_is_heard_of_whatever_the_name(
    context: &Context,
) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let mut names = Vec::new();
    for namespace in longest_namespaces(context)? {
        names.push(LockName::new(&namespace, "a")?);
    }
    names.extend(awkward(context)?);
    for shape in names::HOSTILE {
        names.push(context.name(shape)?);
    }
    // Names that differ little are next to each other, and are waited for at the same time.
    for some in names.chunks(8) {
        let (ready, mut locks) = (Arc::new(Barrier::new(some.len())), JoinSet::new());
        for name in some {
            let (holder, waiter, ready) = (holder.clone(), waiter.clone(), ready.clone());
            let held = Claim::new(name.clone(), context.long());
            let waiting = context.all_that_wait_for(name);
            let limit = context.patience();
            locks.spawn(is_heard_of(holder, waiter, held, waiting, ready, limit));
        }
        while let Some(lock) = locks.join_next().await {
            lock??;
        }
    }
    Ok(())
}

/// Lets a lock go when all are `ready`. Each of `waiting` waits for it.
async fn is_heard_of(
    holder: Arc<Connection>,
    waiter: Arc<Connection>,
    held: Claim,
    waiting: Vec<Claim>,
    ready: Arc<Barrier>,
    limit: Duration,
) -> Verdict {
    holder.take(&held).await?;
    let mut waits = JoinSet::new();
    for claim in waiting {
        let taken = waiter.is_refused(&claim, &format!("{:?} is held", held.name())).await?;
        let waiter = waiter.clone();
        waits.spawn(async move {
            // This claim may be one too many to be told for now.
            if !taken.is_unheard() {
                let granted = timeout(limit, waiter.listen_until_granted(&claim)).await;
                let Ok(granted) = granted else {
                    fail!("no news within {limit:?} of the release of {:?}", claim.name())
                };
                granted?;
            }
            waiter.release(&claim).await?;
            Verdict::Ok(())
        });
    }
    ready.wait().await;
    holder.release(&held).await?;
    while let Some(wait) = waits.join_next().await {
        wait??;
    }
    Ok(())
}

/// Names that are one lock if namespace and name are joined carelessly, or if either is cut off or
/// forgotten.
fn easily_joined(context: &Context) -> Verdict<Vec<LockName>> {
    let mut names = Vec::new();
    for (namespace, name) in [
        ("c-@", "a"),
        ("C-@", "a"),
        ("c-@.a", "a"),
        ("c-@", "a.a"),
        ("c-@", "a-a"),
        ("c-@-a", "a"),
        ("c-@", "a_a"),
        ("c-@_a", "a"),
        ("c-@", "a/a"),
        ("c-@", "a:a"),
        ("c-@", ":a"),
        ("c-@", "/a"),
        ("c-@.", "a"),
        ("c-@", ".a"),
        ("c-@-", "a"),
        ("c-@", "-a"),
    ] {
        names.push(LockName::new(&context.namespace_beside(namespace)?, name)?);
    }
    for namespace in longest_namespaces(context)? {
        names.push(LockName::new(&namespace, "a")?);
        for last in ["x", "y"] {
            let name = format!("{}{last}", "a".repeat(LockName::MAX_LEN - 1));
            names.push(LockName::new(&namespace, &name)?);
        }
    }
    Ok(names)
}

/// Two namespaces that are as long as can be and differ in the last byte.
fn longest_namespaces(context: &Context) -> Verdict<[Namespace; 2]> {
    const LONGEST: usize = 64;
    let stem = context.namespace_beside("@")?.as_str().len();
    let fill = "x".repeat(LONGEST.saturating_sub(stem + 1));
    Ok([
        context.namespace_beside(&format!("@{fill}x"))?,
        context.namespace_beside(&format!("@{fill}y"))?,
    ])
}

/// Names that are the same number.
fn numbers(context: &Context) -> Verdict<Vec<LockName>> {
    let number = u64::from_str_radix(&context.text("@"), 16)?;
    let shapes = [
        format!("{number}"),
        format!("0{number}"),
        format!("+{number}"),
        format!("{number}.0"),
        format!("{number}e0"),
        format!("{number:#x}"),
    ];
    shapes.iter().map(|shape| context.name(shape)).collect()
}

fn awkward(context: &Context) -> Verdict<Vec<LockName>> {
    names::awkward().iter().map(|shape| context.name(shape)).collect()
}
