use lockkit_core::Liveness;
use lockkit_core::driver::{Claim, Driver as _};
use rustix::io::{FdFlags, fcntl_getfd};

use crate::connection::Connection;
use crate::context::{Context, Verdict};

pub(in crate::checks) async fn a_descriptor_keeps_the_lock(context: &Context) -> Verdict {
    let (holder, other) = context.pair().await?;
    let (held, waiting) = (context.long_claim()?, context.queued(context.long_claim()?));
    has_none(&holder, &held, "has not asked").await?;
    holder.take(&held).await?;
    other.is_refused(&waiting, "it is held").await?;
    has_none(&other, &waiting, "waits").await?;
    other.release(&waiting).await?;
    let descriptor = holder.descriptor(&held).await?;
    let liveness = context.capabilities().liveness;
    if let Some(copy) = &descriptor {
        ensure!(
            liveness == Liveness::Process,
            "a hold that ends with its {liveness} has a descriptor, which cannot keep it"
        );
        let flags = fcntl_getfd(copy)?;
        ensure!(flags.contains(FdFlags::CLOEXEC), "a descriptor is not closed on `exec`");
        holder.keep(&held).await?;
    }
    holder.release(&held).await?;
    has_none(&holder, &held, "was released").await?;
    let next = context.long_claim()?;
    if descriptor.is_some() {
        other.is_refused(&next, "a copy of the descriptor that keeps it is open").await?;
    }
    drop(descriptor);
    // A process that starts at this moment has copies of all descriptors until its `exec`.
    other.ask_until_granted(context, &next, context.patience()).await?;
    Ok(())
}

/// The claim, which holds nothing, has no descriptor; `why` completes "a claim that".
async fn has_none(connection: &Connection, claim: &Claim, why: &str) -> Verdict {
    let descriptor = connection.descriptor(claim).await?;
    ensure!(descriptor.is_none(), "a claim that {why} has a descriptor, and holds nothing");
    Ok(())
}
