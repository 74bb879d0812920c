//! Taking the lock, and what the command is to inherit of it.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;

use lockkit::{AcquireOptions, DistributedLock, Error, LockGuard, Locker, Wait};
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::select;
use tokio::time::timeout;

use super::{Failure, OWNERS};
use crate::args::Run;
use crate::signals::Signals;
use crate::{tree, waiting};

/// Takes the lock, and what the command is to inherit of it, unless a signal comes first.
pub(super) async fn take(
    locker: &Locker,
    options: &Run,
    signals: &mut Signals,
) -> Result<(LockGuard, Option<OwnedFd>), Failure> {
    let taking = async {
        let guard = acquire(locker, options).await?;
        let shared = share(&guard).await?;
        Ok((guard, shared))
    };
    select! {
        biased;
        signal = signals.end() => Err(Failure::Signal(signal)),
        taken = taking => taken,
        never = tree::reap_orphans() => match never? {},
    }
}

async fn acquire(locker: &Locker, options: &Run) -> lockkit::Result<LockGuard> {
    let lock = locker.lock(&options.name)?;
    let lock: Box<dyn DistributedLock> =
        if options.fair { Box::new(lock.fair()?) } else { Box::new(lock) };
    let wait = match (options.no_wait, options.wait) {
        (true, _) => Wait::No,
        (false, Some(patience)) => Wait::AtMost(patience),
        (false, None) => Wait::Forever,
    };
    let how = AcquireOptions::new().wait(wait);
    let how = options.ttl.map_or(how, |ttl| how.ttl(ttl));
    let acquiring = async {
        let acquiring = lock.acquire_with(how);
        match options.quiet {
            true => acquiring.await,
            false => waiting::wait(locker, &options.name, wait, acquiring).await,
        }
    };
    match env::var(OWNERS) {
        Ok(owners) if !options.no_wait => {
            let mut acquiring = pin!(acquiring);
            let mut looking = pin!(refuse_to_wait_for_itself(locker, &options.name, &owners));
            // At the same time: the look is not to add to the wait.
            select! {
                biased;
                outcome = &mut acquiring => {
                    // A wait that was over sooner was in vain all the same.
                    if let Err(Error::TimedOut { .. }) = outcome
                        && let Ok(refused) = timeout(waiting::PATIENCE, looking).await
                    {
                        refused?;
                    }
                    outcome
                }
                refused = &mut looking => {
                    refused?;
                    acquiring.await
                }
            }
        }
        _ => acquiring.await,
    }
}

/// A command that this run is part of cannot end before this one does, and so cannot free the lock.
async fn refuse_to_wait_for_itself(
    locker: &Locker,
    name: &str,
    owners: &str,
) -> lockkit::Result<()> {
    if waiting::is_held_by(locker, name, owners).await {
        let reason = "it is held by the `lockkit run` that this one is part of, so that this one \
                      would wait for itself";
        return Err(Error::config(format!("lock `{name}`"), reason));
    }
    Ok(())
}

/// Where an open file keeps the lock, what this process starts inherits it, as with flock(1): the
/// lock ends with the last process that has it.
async fn share(guard: &LockGuard) -> Result<Option<OwnedFd>, Failure> {
    let descriptor = guard.descriptor().await?;
    if let Some(descriptor) = &descriptor {
        fcntl_setfd(descriptor, FdFlags::empty()).map_err(io::Error::from)?;
    }
    Ok(descriptor)
}
