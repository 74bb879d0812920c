use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Claim, Driver as _, Vouch};
use lockkit_core::{AcquireOptions, Error, Lease, Liveness, LockGuard, Operation, Renew};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::{Connection, Event};
use crate::context::{Client, Context, Stop, Verdict};

pub(in crate::checks) async fn a_hold_outlives_its_lease(context: &Context) -> Verdict {
    let (holder, other) = (context.client().await?, context.client().await?);
    let guard = context.acquire(&holder.lock).await?;
    for _ in 0..16 {
        let second = other.lock.try_acquire().await?;
        ensure!(second.is_none(), "another got the lock during a hold that is renewed");
        tokio::time::sleep(context.ttl() / 4).await;
    }
    ensure!(guard.is_held(), "a hold that was renewed is not held after four leases");
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_hold_is_not_lost_without_cause(context: &Context) -> Verdict {
    let client = context.client().await?;
    let guard = context.acquire(&client.lock).await?;
    match tokio::time::timeout(4 * context.ttl(), guard.lost()).await {
        Ok(()) => fail!("a hold was reported lost, although nothing happened"),
        Err(_) => {
            guard.release().await?;
            Ok(())
        }
    }
}

pub(in crate::checks) async fn a_lease_without_renewals_is_lost_in_time(
    context: &Context,
) -> Verdict {
    let (holder, other) = (context.client().await?, context.connect().await?);
    let lease = Lease::new(context.ttl()).renew(Renew::Never);
    let guard = holder.lock.leased(lease)?.acquire().await?;
    other.ask_until_granted(context, &context.claim()?, context.expiry(lease.ttl())).await?;
    ensure!(!guard.is_held(), "another was granted the lock while the guard says that it is held");
    context.promptly("the report of a loss", guard.lost()).await
}

pub(in crate::checks) async fn an_extended_lease_lasts(context: &Context) -> Verdict {
    let (holder, other) = (context.client().await?, context.client().await?);
    let lease = Lease::new(context.ttl()).renew(Renew::Never);
    let longer = (3 * lease.ttl()).min(context.capabilities().max_ttl);
    let guard = holder.lock.leased(lease)?.acquire_leased(AcquireOptions::new()).await?;
    let extended = Instant::now();
    guard.extend(longer).await?;
    // However long each ask takes.
    while extended.elapsed() < 2 * longer / 3 {
        let second = other.lock.try_acquire().await?;
        ensure!(second.is_none(), "another got the lock during an extended lease");
        ensure!(guard.is_held(), "an extended lease was lost before its time");
        tokio::time::sleep(longer / 12).await;
    }
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn the_longest_hold_ends(context: &Context) -> Verdict {
    let lease = Lease::new(context.ttl()).max_hold(2 * context.ttl());
    let (holder, other) = (context.client_with(lease).await?, context.client().await?);
    let guard = context.acquire(&holder.lock).await?;
    tokio::time::sleep(context.ttl() + context.ttl() / 2).await;
    ensure!(guard.is_held(), "a hold was lost before the longest hold was over");
    let limit = context.ttl() / 2 + context.patience();
    context.within(limit, "the end of the longest hold", guard.lost()).await?;
    let next = context.promptly("a hold after the longest hold", other.lock.acquire()).await??;
    next.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_revoked_hold_is_reported(context: &Context) -> Verdict {
    let client = context.client().await?;
    let guard = context.acquire(&client.lock).await?;
    context.revoke(guard.name()).await?;
    let limit = match context.capabilities().liveness {
        Liveness::Lease => context.ttl(),
        _ => context.notice(),
    };
    context.within(limit, "the report of a loss", guard.lost()).await?;
    ensure!(!guard.is_held(), "a guard whose loss was reported says that it is held");
    Ok(())
}

pub(in crate::checks) async fn a_release_after_the_loss_says_so(context: &Context) -> Verdict {
    let (holder, next) = (context.client().await?, context.long_client().await?);
    let other = context.long_client().await?;
    let guard = context.acquire(&holder.lock).await?;
    context.revoke(guard.name()).await?;
    let successor = context.promptly("the next hold", next.lock.acquire()).await??;
    match guard.release().await {
        Err(Error::Lost { .. }) => (),
        outcome => fail!("the release of a hold that was taken away ended in {outcome:?}"),
    }
    let third = other.lock.try_acquire().await?;
    ensure!(third.is_none(), "the release of a lost hold freed the lock of its successor");
    successor.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_lost_lock_can_be_held_again(context: &Context) -> Verdict {
    let (holder, other) = (context.client().await?, context.client().await?);
    let guard = context.acquire(&holder.lock).await?;
    context.revoke(guard.name()).await?;
    context.reported(&guard).await?;
    let again = context.promptly("a hold after a loss", holder.lock.acquire()).await??;
    drop(guard);
    for _ in 0..8 {
        ensure!(again.is_held(), "a hold after a loss was lost as well");
        let second = other.lock.try_acquire().await?;
        ensure!(second.is_none(), "another got the lock during a hold after a loss");
        tokio::time::sleep(context.ttl() / 4).await;
    }
    again.release().await?;
    Ok(())
}

pub(in crate::checks) async fn work_ends_with_its_hold(context: &Context) -> Verdict {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let client = context.client().await?;
    let ended = Arc::new(AtomicBool::new(false));
    let work = client.lock.run(|_| {
        let dropped = Dropped(ended.clone());
        async move {
            std::future::pending::<()>().await;
            drop(dropped);
        }
    });
    let revoke = async {
        let is_granted = |event: &Event| matches!(event, Event::Granted(_));
        client.connection.until(|events| events.iter().any(is_granted)).await;
        context.revoke(client.lock.name()).await
    };
    let both = async { tokio::join!(work, revoke) };
    let end = "the end of work under a lost lock";
    let (outcome, revoked) = context.within(context.notice(), end, both).await?;
    revoked?;
    ensure!(ended.load(Ordering::SeqCst), "work goes on although its hold is lost");
    match outcome {
        Err(Error::Lost { .. }) => Ok(()),
        outcome => fail!("work whose hold was lost ended in {outcome:?}"),
    }
}

pub(in crate::checks) async fn a_thousand_names_are_held(context: &Context) -> Verdict {
    const LONGEST: Duration = Duration::from_secs(45);
    let names: Vec<_> = (0..1000).map(|n| context.text(&format!("name-{n}-@"))).collect();
    let begun = Instant::now();
    let some = acquire_all(&context.long_client().await?, &names[..100]).await?;
    release_all(some).await?;
    // Each hold is renewed once in a third of its lease. At the backend's pace, which may be that
    // of a slow disk, all of them are then renewed in a sixth at most.
    let ttl = (10 * context.ttl()).max((60 * begun.elapsed()).min(LONGEST));
    let ttl = ttl.min(context.capabilities().max_ttl);
    let guards = acquire_all(&context.client_with(Lease::new(ttl)).await?, &names).await?;
    tokio::time::sleep(2 * ttl).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} of 1,000 holds were lost within two leases");
    release_all(guards).await
}

async fn acquire_all(client: &Client, names: &[String]) -> Verdict<Vec<LockGuard>> {
    let mut locks = Vec::new();
    for name in names {
        locks.push(client.locker.lock(name)?);
    }
    some_at_a_time(locks.into_iter().map(|lock| async move { lock.acquire().await })).await
}

async fn release_all(guards: Vec<LockGuard>) -> Verdict {
    some_at_a_time(guards.into_iter().map(|guard| async move { guard.release().await })).await?;
    Ok(())
}

/// What each future ends in. One after the other, they would wait a thousand times for a backend's
/// disk.
async fn some_at_a_time<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = lockkit_core::Result<T>> + Send + 'static>,
) -> Verdict<Vec<T>> {
    const SOME: usize = 8;
    let (mut under_way, mut ended) = (JoinSet::new(), Vec::new());
    for future in futures {
        if under_way.len() == SOME
            && let Some(end) = under_way.join_next().await
        {
            ended.push(end??);
        }
        under_way.spawn(future);
    }
    while let Some(end) = under_way.join_next().await {
        ended.push(end??);
    }
    Ok(ended)
}

pub(in crate::checks) async fn a_grant_whose_answer_was_lost_is_found(
    context: &Context,
) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    client.connection.lose_answers(Operation::Acquire, 2);
    let guard = context.promptly("a hold", client.lock.acquire()).await??;
    let second = other.lock.try_acquire().await?;
    ensure!(second.is_none(), "two hold the lock, one of them after its answer was lost");
    guard.release().await?;
    let guard = other.lock.try_acquire().await?;
    ensure!(guard.is_some(), "the lock is not free after a release, the grant's answer being lost");
    Ok(())
}

pub(in crate::checks) async fn a_hold_survives_lost_answers(context: &Context) -> Verdict {
    let (client, other) = (context.client().await?, context.client().await?);
    let guard = context.acquire(&client.lock).await?;
    for _ in 0..3 {
        client.connection.lose_answers(Operation::Renew, 2);
        tokio::time::sleep(context.ttl()).await;
        ensure!(guard.is_held(), "a hold was lost because answers to renewals were");
        let second = other.lock.try_acquire().await?;
        ensure!(second.is_none(), "another got the lock because answers to renewals were lost");
    }
    guard.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_release_whose_answer_was_lost_frees(context: &Context) -> Verdict {
    let (client, other) = (context.long_client().await?, context.long_client().await?);
    let guard = context.acquire(&client.lock).await?;
    client.connection.lose_answers(Operation::Release, 2);
    drop(guard);
    context.promptly("a hold after a release", other.lock.acquire()).await??.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_hold_is_lost_in_time_while_nobody_answers(
    context: &Context,
) -> Verdict {
    let client = context.client().await?;
    let length = length_of_a_hold(context, &client.connection).await?;
    let guard = context.acquire(&client.lock).await?;
    context.fall_silent().await?;
    // No request that left from now on is answered, so nothing can vouch for longer.
    tokio::time::sleep(length).await;
    ensure!(!guard.is_held(), "a guard still believed {length:?} after the last answer");
    context.promptly("word of a loss while nobody answers", guard.lost()).await?;
    // It may say that the hold was lost, or that it was not answered.
    _ = context.promptly("the end of a release while nobody answers", guard.release()).await?;
    context.speak().await?;
    let limit = context.expiry(length) + context.patience();
    let again = context.within(limit, "a hold after a silence", client.lock.acquire()).await??;
    again.release().await?;
    Ok(())
}

/// For how long a hold lasts that nobody hears of any more: a session lasts as long as it is
/// vouched for, whatever is asked for.
async fn length_of_a_hold(context: &Context, connection: &Connection) -> Verdict<Duration> {
    const LONGEST: Duration = Duration::from_secs(60);
    match context.capabilities().liveness {
        Liveness::Lease => return Ok(context.ttl()),
        Liveness::Session => (),
        _ => return Err(Stop::DoesNotApply("a hold lasts as long as its process".into())),
    }
    let probe = Claim::new(context.name("probe-@")?, context.ttl());
    let vouch = connection.take(&probe).await?.vouched();
    connection.release(&probe).await?;
    match vouch {
        Vouch::Lease { ttl, .. } if ttl > LONGEST => {
            Err(Stop::DoesNotApply(format!("a session lasts for {ttl:?}")))
        }
        Vouch::Lease { ttl, .. } => Ok(ttl),
        vouch => fail!("a session is vouched for {vouch:?}"),
    }
}

pub(in crate::checks) async fn a_hold_survives_a_cut(context: &Context) -> Verdict {
    let ttl = (4 * context.ttl()).min(context.capabilities().max_ttl);
    let client = context.client_with(Lease::new(ttl)).await?;
    let other = context.client_with(Lease::new(ttl)).await?;
    let guard = context.acquire(&client.lock).await?;
    for _ in 0..3 {
        context.sever().await?;
        tokio::time::sleep(ttl / 2).await;
    }
    let (held, liveness) = (guard.is_held(), context.capabilities().liveness);
    ensure!(held || liveness != Liveness::Lease, "a lease was lost because connections were cut");
    if held {
        let tried = async {
            loop {
                match other.lock.try_acquire().await {
                    Err(error) if error.is_transient() => (),
                    answer => return answer,
                }
            }
        };
        let second = context.promptly("the answer to a try after a cut", tried).await??;
        ensure!(
            second.is_none() || !guard.is_held(),
            "two hold the lock after connections were cut"
        );
    }
    drop(guard);
    context.promptly("a hold after a cut", other.lock.acquire()).await??.release().await?;
    Ok(())
}

pub(in crate::checks) async fn a_restart_is_got_over(context: &Context) -> Verdict {
    // The length of the lease is not what is checked: a locker may be silent for no longer than
    // that.
    let ttl = (4 * context.ttl()).min(context.capabilities().max_ttl);
    let client = context.client_with(Lease::new(ttl)).await?;
    // Whether this hold survives is up to the backend.
    let before = context.acquire(&client.lock).await?;
    context.restart().await?;
    drop(before);
    let limit = context.expiry(ttl) + context.patience();
    let guard = context.within(limit, "a hold after a restart", client.lock.acquire()).await??;
    tokio::time::sleep(2 * ttl).await;
    ensure!(guard.is_held(), "a hold that was taken after a restart was lost");
    guard.release().await?;
    Ok(())
}
