//! Requests of one claim that are under way at the same time: one that is late, or was repeated.

use lockkit_core::driver::{Claim, Driver as _};

use crate::connection::Connection;
use crate::context::{Context, Verdict};

/// Whether the race shows what is wrong is a matter of chance, and less so with requests that come
/// some steps later than the first.
const ROUNDS: usize = 10;

pub(in crate::checks) async fn a_release_is_one_step(context: &Context) -> Verdict {
    let (holder, next) = context.pair().await?;
    for round in 0..ROUNDS {
        let (early, late) = two_claims(context, round)?;
        holder.take(&early).await?;
        let release = |steps| {
            let (holder, early) = (&holder, &early);
            async move {
                for _ in 0..steps {
                    holder.release(&Claim::new(early.name().clone(), early.ttl())).await?;
                }
                Verdict::Ok(holder.release(early).await?)
            }
        };
        let (handed_over, first, second, third) = tokio::join!(
            hand_over(context, &holder, &next, &early, &late),
            release(0),
            release(1),
            release(2)
        );
        handed_over?;
        for released in [first, second, third] {
            released?;
        }
        is_kept(&next, &late, "a release").await?;
    }
    Ok(())
}

pub(in crate::checks) async fn a_renewal_is_one_step(context: &Context) -> Verdict {
    let (holder, next) = context.pair().await?;
    for round in 0..ROUNDS {
        let (early, late) = two_claims(context, round)?;
        holder.take(&early).await?;
        let renewal = |steps| {
            let (holder, early) = (&holder, &early);
            async move {
                for _ in 0..steps {
                    holder.renew(&Claim::new(early.name().clone(), early.ttl())).await?;
                }
                Verdict::Ok(holder.renew(early).await?)
            }
        };
        let (first, second, third, handed_over) = tokio::join!(
            renewal(0),
            renewal(1),
            renewal(2),
            hand_over(context, &holder, &next, &early, &late)
        );
        handed_over?;
        for renewed in [first, second, third] {
            renewed?;
        }
        holder.is_lost(&early, "it was released, and another owner holds the lock").await?;
        is_kept(&next, &late, "a renewal").await?;
    }
    Ok(())
}

fn two_claims(context: &Context, round: usize) -> Verdict<(Claim, Claim)> {
    let name = context.name(&format!("lock{round}-@"))?;
    Ok((Claim::new(name.clone(), context.long()), Claim::new(name, context.long())))
}

/// Has `late` take the lock as soon as `early` has let go.
async fn hand_over(
    context: &Context,
    holder: &Connection,
    next: &Connection,
    early: &Claim,
    late: &Claim,
) -> Verdict {
    holder.release(early).await?;
    next.ask_until_granted(context, late, context.patience()).await.map(drop)
}

/// The hold of the next owner stands, whatever else was asked for the last one.
async fn is_kept(next: &Connection, late: &Claim, what: &str) -> Verdict {
    let kept = next.keep(late).await;
    ensure!(kept.is_ok(), "{what} of one owner ended the hold of the next");
    next.release(late).await?;
    Ok(())
}
