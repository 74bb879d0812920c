//! What comes of requests that the backend does not answer.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Claim, Driver as _, DriverError, ErrorKind, Release, Renewal, Vouch,
};
use lockkit_core::{Grade, Liveness, LockName};
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::context::{Context, Verdict};

/// Enough for some to be on their way when it falls silent, whatever a driver has in order.
const ASKS: usize = 8;

pub(in crate::checks) async fn requests_end_while_nobody_answers(context: &Context) -> Verdict {
    let connection = context.connect().await?;
    let claim = |shape| Verdict::Ok(Claim::new(context.name(shape)?, context.long()));
    let (held, released) = (claim("held-@")?, claim("released-@")?);
    let (asked, later) = (claim("asked-@")?, claim("later-@")?);
    connection.take(&held).await?;
    connection.take(&released).await?;
    context.fall_silent().await?;
    let silent = held.now();
    let requests = async {
        let (renewal, release, ask) = tokio::join!(
            connection.renew(&held),
            connection.release(&released),
            connection.try_acquire(&asked)
        );
        // A driver may know that a session is over, or for how long it was good before.
        let is_session = context.capabilities().liveness == Liveness::Session;
        match renewal {
            Ok(Renewal::Lost) if is_session => (),
            Ok(Renewal::Held(Vouch::Lease { since, .. })) if is_session && since <= silent => (),
            renewal => is_unanswered("a renewal", renewal)?,
        }
        match release {
            Ok(Release::NotHeld) if is_session => (),
            release => is_unanswered("a release", release)?,
        }
        is_unanswered("an ask", ask)?;
        if context.capabilities().inspection {
            nothing_is_seen(&connection, held.name()).await?;
        }
        Verdict::Ok(())
    };
    context.promptly("the ends of requests that nobody answers", requests).await??;
    context.speak().await?;
    connection.take_after_trouble(context, &later).await?;
    Ok(())
}

pub(in crate::checks) async fn an_ask_that_did_not_arrive_leaves_nothing(
    context: &Context,
) -> Verdict {
    let (connection, other) = context.pair().await?;
    let (claims, answers) = ask_in_silence(context, &connection, context.long()).await?;
    // Time for what is still on its way to arrive.
    tokio::time::sleep(context.ttl() / 2).await;
    for (claim, answer) in claims.iter().zip(answers) {
        if answer.kind() == ErrorKind::Unknown {
            context.after_trouble(async || connection.release(claim).await).await?;
            continue;
        }
        holds_nothing(context, &other, claim, &answer).await?;
    }
    Ok(())
}

/// Another claim gets the lock, since the ask was not carried out if its answer is to be believed.
pub(super) async fn holds_nothing(
    context: &Context,
    other: &Connection,
    claim: &Claim,
    answer: &DriverError,
) -> Verdict {
    let next = Claim::new(claim.name().clone(), context.ttl());
    let asked = context.after_trouble(async || other.try_acquire(&next).await).await?;
    ensure!(
        matches!(asked, Attempt::Granted(_)),
        "an ask holds the lock that was said to be certainly not carried out: {answer}"
    );
    Ok(())
}

pub(in crate::checks) async fn an_ask_in_a_silence_leaves_at_most_a_lease(
    context: &Context,
) -> Verdict {
    let (connection, other) = context.pair().await?;
    let (claims, _) = ask_in_silence(context, &connection, context.ttl()).await?;
    for claim in &claims {
        context.after_trouble(async || connection.release(claim).await).await?;
    }
    // Time for what is still on its way to arrive.
    tokio::time::sleep(context.ttl() / 2).await;
    let limit = context.expiry(context.ttl());
    for claim in &claims {
        let next = Claim::new(claim.name().clone(), context.ttl());
        other.ask_until_granted(context, &next, limit).await?;
    }
    Ok(())
}

/// Asks for several locks while the backend is silent, and waits until these requests have ended.
/// The backend speaks again when this returns.
async fn ask_in_silence(
    context: &Context,
    connection: &Arc<Connection>,
    ttl: Duration,
) -> Verdict<(Vec<Claim>, Vec<DriverError>)> {
    // The connection is one that has been used.
    let before = context.long_claim()?;
    connection.take(&before).await?;
    connection.release(&before).await?;
    let claim = |number| Ok(Claim::new(context.name(&format!("silence-{number}-@"))?, ttl));
    let claims = (0..ASKS).map(claim).collect::<Verdict<Vec<_>>>()?;
    context.fall_silent().await?;
    let mut asks = JoinSet::new();
    for (number, claim) in claims.iter().cloned().enumerate() {
        let connection = Arc::clone(connection);
        asks.spawn(async move { (number, connection.try_acquire(&claim).await) });
    }
    let mut answers =
        context.promptly("the ends of asks that nobody answers", asks.join_all()).await?;
    context.speak().await?;
    answers.sort_by_key(|(number, _)| *number);
    let mut errors = Vec::new();
    for (_, answer) in answers {
        match answer {
            Ok(_) => fail!("an ask was answered while the backend was silent"),
            Err(error) if error.kind().is_transient() => errors.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((claims, errors))
}

/// Whoever looks, lists, diagnoses or breaks while the backend is silent is told so.
async fn nothing_is_seen(connection: &Connection, name: &LockName) -> Verdict {
    let inspect = connection.inspection()?;
    let (look, list, diagnosis, broken) = tokio::join!(
        inspect.look(name),
        inspect.held(name.namespace()),
        inspect.diagnose(name.namespace()),
        inspect.break_hold(name, None)
    );
    is_unanswered("a look", look)?;
    is_unanswered("a list", list)?;
    is_unanswered("a break", broken)?;
    match diagnosis {
        // What it found out is that there is no answer.
        Ok(findings) if findings.iter().any(|found| found.grade() != Grade::Good) => Ok(()),
        diagnosis => is_unanswered("a diagnosis", diagnosis),
    }
}

fn is_unanswered<T: Debug>(what: &str, answer: Result<T, DriverError>) -> Verdict {
    match answer {
        Ok(answer) => fail!("{what} was answered while the backend was silent: {answer:?}"),
        Err(error) if error.kind().is_transient() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
