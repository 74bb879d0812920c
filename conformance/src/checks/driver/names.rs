use lockkit_core::LockName;
use lockkit_core::driver::{Claim, Driver as _};

use crate::context::{Context, Verdict};
use crate::names;

pub(in crate::checks) async fn different_names_are_different_locks(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    for name in awkward(context)? {
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
    let mut held = Vec::new();
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
        let namespace = context.namespace_beside(namespace)?;
        held.push(Claim::new(LockName::new(&namespace, name)?, context.long()));
    }
    for claim in &held {
        let granted = connection.take(claim).await;
        ensure!(granted.is_ok(), "{:?} was refused, although it is not held", claim.name());
    }
    for claim in held {
        let second = Claim::new(claim.name().clone(), context.long());
        other.is_refused(&second, &format!("{:?} is held", claim.name())).await?;
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
        let intact = holder.keep(&witness).await;
        ensure!(intact.is_ok(), "the use of a lock named {name:?} ended the hold of another lock");
        other.is_refused(&context.long_claim()?, "it is held").await?;
    }
    Ok(())
}

fn awkward(context: &Context) -> Verdict<Vec<LockName>> {
    names::awkward().iter().map(|shape| context.name(shape)).collect()
}
