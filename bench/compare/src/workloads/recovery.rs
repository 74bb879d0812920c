use std::time::{Duration, Instant};

use lockkit_bench::{Result, Unit};

use crate::hired::Hired;
use crate::run::{Figure, Round};
use crate::scale::Scale;
use crate::subject::Subject;

/// How long a waiter has until it waits.
const SETTLE: Duration = Duration::from_millis(500);

/// The process that holds is killed: how long until another one holds, which waits. Renewals are due
/// at some part of the lease: the holder is killed at such a `share` of a third of it.
pub(crate) async fn recovery(subject: &Subject, scale: &Scale, share: f64) -> Result<Round> {
    let Scale { lease, limit, .. } = *scale;
    let hold = format!("hold {}", super::name("recovery"));
    let mut holder = Hired::start(subject, lease, limit).await?;
    let mut waiter = Hired::start(subject, lease, limit).await?;
    holder.ask(&hold, limit).await?;
    waiter.tell(&hold).await?;
    match waiter.answer(SETTLE + lease.mul_f64(share / 3.0)).await {
        Ok(answer) if answer.get("held").is_some() => {
            return Err("two of its clients held the same lock".into());
        }
        Ok(answer) => return Err(format!("it does not wait: {answer}").into()),
        // As it should be.
        Err(_) => (),
    }
    let killed = Instant::now();
    holder.end().await?;
    let answer = waiter.answer(limit).await?;
    let time = killed.elapsed();
    if answer.get("held").is_none() {
        return Err(format!("it does not get the lock: {answer}").into());
    }
    waiter.end().await?;
    let figure = |name: &str, unit, value| Figure { name: name.into(), unit, value };
    Ok(Round {
        figures: vec![
            figure("free after", Unit::Time, time.as_secs_f64()),
            figure("of the lease", Unit::Ratio, time.div_duration_f64(lease)),
        ],
        ..Round::default()
    })
}
