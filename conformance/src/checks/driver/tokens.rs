use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkit_core::FencingToken;
use lockkit_core::driver::{Attempt, Change, Claim, Driver as _};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use super::waiting::settle;
use crate::connection::Connection;
use crate::context::{Context, Stop, Verdict};

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
    for _ in 0..3 {
        for kind in context.kinds() {
            for connection in [&one, &one, &other] {
                let claim = kind(context.long_claim()?);
                rises(&mut last, connection.take_token(&claim).await?)?;
                connection.release(&claim).await?;
            }
        }
    }
    Ok(())
}

pub(in crate::checks) async fn tokens_rise_while_others_ask(context: &Context) -> Verdict {
    let name = context.name("lock-@")?;
    // Enough, on a backend that is slow.
    let until = Instant::now() + context.patience() / 4;
    let (last, mut askers) = (Arc::new(Mutex::new(None)), JoinSet::new());
    for kind in context.kinds().into_iter().cycle().take(8) {
        let (connection, last) = (context.connect().await?, last.clone());
        let (name, ttl) = (name.clone(), context.long());
        let claim = move || kind(Claim::new(name.clone(), ttl));
        askers.spawn(async move { have_turns(&connection, claim, &last, until).await });
    }
    while let Some(asker) = context.promptly("the next turns", askers.join_next()).await? {
        asker??;
    }
    Ok(())
}

/// Some holds that are as short as can be, so that many of them fit between two requests of others.
async fn have_turns(
    connection: &Connection,
    claim: impl Fn() -> Claim,
    last: &Mutex<Option<FencingToken>>,
    until: Instant,
) -> Verdict {
    const TURNS: usize = 25;
    for _ in 0..TURNS {
        let claim = claim();
        let mut refusals: usize = 0;
        let grant = loop {
            if let Attempt::Granted(grant) = connection.try_acquire(&claim).await? {
                break grant;
            }
            refusals += 1;
            match refusals.is_multiple_of(16) {
                true => sleep(Duration::from_millis(1)).await,
                false => yield_now().await,
            }
        };
        let Some(token) = grant.fencing_token() else { fail!("a grant has no fencing token") };
        rises(&mut last.lock().unwrap_or_else(PoisonError::into_inner), token)?;
        connection.release(&claim).await?;
        if Instant::now() > until {
            break;
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

pub(in crate::checks) async fn tokens_rise_over_idleness(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let mut lasts = Vec::new();
    for (number, kind) in context.kinds().into_iter().enumerate() {
        let name = context.name(&format!("lock{number}-@"))?;
        let claim = move || kind(Claim::new(name.clone(), context.ttl()));
        lasts.push((had(&connection, &claim()).await?, claim));
    }
    // Nobody asks for any of them meanwhile.
    sleep(context.expiry(context.ttl())).await;
    for (last, claim) in lasts {
        rises(&mut Some(last), had(&connection, &claim()).await?)?;
    }
    Ok(())
}

/// The token of a hold that is over at once.
async fn had(connection: &Connection, claim: &Claim) -> Verdict<FencingToken> {
    let token = connection.take_token(claim).await?;
    connection.release(claim).await?;
    Ok(token)
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

pub(in crate::checks) async fn a_pushed_grant_has_a_token_of_its_own(context: &Context) -> Verdict {
    let (holder, waiter) = context.pair().await?;
    let (mut are_pushed, mut last) = (false, None);
    for waiting in context.all_that_wait()? {
        are_pushed |= pushed_token_rises(context, &holder, &waiter, &waiting, &mut last).await?;
    }
    match are_pushed {
        true => Ok(()),
        false => Err(Stop::DoesNotApply("the driver pushes no grants".into())),
    }
}

/// Whether the claim is told of a grant.
async fn pushed_token_rises(
    context: &Context,
    holder: &Connection,
    waiter: &Connection,
    waiting: &Claim,
    last: &mut Option<FencingToken>,
) -> Verdict<bool> {
    let held = context.long_claim()?;
    rises(last, holder.take_token(&held).await?)?;
    settle(waiter, waiting, context.ttl() / 8).await?;
    holder.release(&held).await?;
    let news = context.promptly("news of a release", waiter.changed(waiting)).await?;
    let pushed = match &news {
        Change::Granted(grant) => Some(grant.fencing_token()),
        Change::Lost => fail!("the driver says that the place of a waiter was lost"),
        _ => None,
    };
    let asked = waiter.take_token(waiting).await?;
    if let Some(pushed) = pushed {
        ensure!(
            pushed == Some(asked),
            "a pushed grant had the token {pushed:?}, and on asking again {asked}"
        );
    }
    rises(last, asked)?;
    waiter.release(waiting).await?;
    Ok(pushed.is_some())
}

fn rises(last: &mut Option<FencingToken>, token: FencingToken) -> Verdict {
    if let Some(last) = *last {
        ensure_always!(last < token, "after a grant with token {last} came one with {token}");
    }
    *last = Some(token);
    Ok(())
}
