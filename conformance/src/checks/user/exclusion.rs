use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkit_core::{AcquireOptions, Error, FencedCell, FencingToken, Lock, LockGuard, Owner, Wait};
use tokio::task::JoinSet;

use crate::context::{Context, Verdict};

pub(in crate::checks) async fn eight_lockers_take_turns(context: &Context) -> Verdict {
    lockers_take_turns(context, 8).await
}

pub(in crate::checks) async fn sixty_four_lockers_take_turns(context: &Context) -> Verdict {
    lockers_take_turns(context, 64).await
}

pub(in crate::checks) async fn eight_tasks_of_one_locker_take_turns(context: &Context) -> Verdict {
    let client = context.long_client().await?;
    take_turns(context, vec![client.lock; 8]).await.map(drop)
}

pub(in crate::checks) async fn sixty_four_tasks_of_one_locker_take_turns(
    context: &Context,
) -> Verdict {
    let client = context.long_client().await?;
    take_turns(context, vec![client.lock; 64]).await.map(drop)
}

pub(in crate::checks) async fn tokens_rise_in_the_order_of_holds(context: &Context) -> Verdict {
    let mut locks = Vec::new();
    for _ in 0..8 {
        locks.push(context.long_client().await?.lock);
    }
    let tokens = take_turns(context, locks).await?;
    for pair in tokens.windows(2) {
        ensure!(pair[0].is_some(), "a guard has no token, although the driver declares them");
        ensure_always!(
            pair[0] < pair[1],
            "a hold with the token {:?} was followed by one with {:?}",
            pair[0],
            pair[1]
        );
    }
    Ok(())
}

async fn lockers_take_turns(context: &Context, count: usize) -> Verdict {
    let clients = context.long_clients(count).await?;
    let locks = clients.into_iter().map(|client| client.lock).collect();
    take_turns(context, locks).await.map(drop)
}

/// Two turns for each of `locks`, which are all one lock, in a section that only exclusion makes
/// right. Returns the tokens in the order of the holds.
async fn take_turns(context: &Context, locks: Vec<Lock>) -> Verdict<Vec<Option<FencingToken>>> {
    const TURNS: usize = 2;
    let expected = locks.len() * TURNS;
    let section = Arc::new(Section::default());
    let mut tasks = JoinSet::new();
    for lock in locks {
        let section = section.clone();
        tasks.spawn(async move {
            for _ in 0..TURNS {
                let guard = lock.acquire().await?;
                section.visit(&guard).await?;
                guard.release().await?;
            }
            Verdict::Ok(())
        });
    }
    while let Some(task) = context.promptly("the next turns", tasks.join_next()).await? {
        task??;
    }
    let counted = section.counter.load(Ordering::SeqCst);
    ensure_always!(counted == expected, "{expected} increments under the lock made {counted}");
    Ok(std::mem::take(&mut *section.tokens.lock().unwrap_or_else(PoisonError::into_inner)))
}

#[derive(Default)]
struct Section {
    inside: AtomicUsize,
    counter: AtomicUsize,
    tokens: Mutex<Vec<Option<FencingToken>>>,
}

impl Section {
    async fn visit(&self, guard: &LockGuard) -> Verdict {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        ensure_always!(others == 0, "{} are inside at once", others + 1);
        let token = guard.fencing_token();
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        // Read, wait, write: an increment that is right only if nobody else does it meanwhile.
        let read = self.counter.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.counter.store(read + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

pub(in crate::checks) async fn one_task_excludes_itself(context: &Context) -> Verdict {
    let client = context.long_client().await?;
    let guard = context.acquire(&client.lock).await?;
    let second = client.lock.try_acquire().await?;
    ensure_always!(second.is_none(), "a task was let in twice, without an owner");
    let same = client.locker.lock(client.lock.name().as_str())?;
    ensure_always!(
        same.try_acquire().await?.is_none(),
        "a locker was let in twice, without an owner"
    );
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_stale_holder_is_fenced_off(context: &Context) -> Verdict {
    let (paused, next) = (context.long_client().await?, context.long_client().await?);
    let data = FencedCell::new("nothing");
    let guard = context.acquire(&paused.lock).await?;
    let Some(stale) = guard.fencing_token() else { fail!("a guard has no token") };
    data.write(stale, |data| *data = "the first holder's")?;
    context.revoke(guard.name()).await?;
    let successor = context.promptly("the next hold", next.lock.acquire()).await??;
    let Some(token) = successor.fencing_token() else { fail!("a guard has no token") };
    let written = data.write(token, |data| *data = "the second holder's");
    ensure!(written.is_ok(), "a hold with token {token} was fenced off by the one before, {stale}");
    let refused = data.write(stale, |data| *data = "the first holder's again");
    ensure!(refused.is_err(), "a stale holder overwrote what its successor wrote");
    successor.release().await?;
    Ok(())
}

pub(in crate::checks) async fn an_owner_reenters(context: &Context) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let (owner, options) = (Owner::new(), AcquireOptions::new().wait(Wait::No));
    let outer = client.lock.acquire_as(&owner, options).await?;
    let inner = client.lock.acquire_as(&owner, options).await?;
    let depth = client.lock.depth(&owner);
    ensure!(depth == 2, "the depth of an owner with two guards is {depth}");
    ensure!(
        outer.fencing_token() == inner.fencing_token(),
        "the token changed from {:?} to {:?} on re-entry",
        outer.fencing_token(),
        inner.fencing_token()
    );
    outer.release().await?;
    let early = other.lock.try_acquire().await?;
    ensure_always!(early.is_none(), "the lock was free before the owner's last guard was gone");
    inner.release().await?;
    let guard = other.lock.try_acquire().await?;
    ensure!(guard.is_some(), "the lock was not free after the owner's last guard was gone");
    Ok(())
}

pub(in crate::checks) async fn other_owners_are_kept_out(context: &Context) -> Verdict {
    let client = context.long_client().await?;
    let (owner, other) = (Owner::new(), Owner::new());
    let options = AcquireOptions::new().wait(Wait::No);
    let guard = client.lock.acquire_as(&owner, options).await?;
    match client.lock.acquire_as(&other, options).await {
        Err(Error::Taken { .. }) => (),
        Err(error) => return Err(error.into()),
        Ok(_) => refute!("two owners hold one lock"),
    }
    guard.release().await?;
    client.lock.acquire_as(&other, options).await?.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_lost_hold_is_not_reentered(context: &Context) -> Verdict {
    let client = context.client().await?;
    let (owner, options) = (Owner::new(), AcquireOptions::new().wait(Wait::No));
    let guard = client.lock.acquire_as(&owner, options).await?;
    context.revoke(guard.name()).await?;
    context.reported(&guard).await?;
    match client.lock.acquire_as(&owner, options).await {
        Err(Error::Lost { .. }) => (),
        Err(error) => return Err(error.into()),
        Ok(_) => fail!("an owner re-entered a hold that was lost"),
    }
    drop(guard);
    let again =
        context.promptly("a new hold", client.lock.acquire_as(&owner, AcquireOptions::new()));
    let guard = again.await??;
    ensure!(guard.is_held(), "a new hold after a loss is not held");
    guard.release().await?;
    Ok(())
}
