use std::time::Duration;

use lockkit_bench::Result;
use serde_json::Value;
use tokio::time::sleep;

use crate::agent::a_while;
use crate::hired::Hired;
use crate::run::Round;
use crate::scale::Scale;
use crate::times::Times;

/// The longest that a waiter waits before the holder lets go.
const WHILE: Duration = Duration::from_millis(140);
/// The first one makes connections and subscriptions.
const UNUSED: usize = 1;

/// One client waits for what another holds, from the call of release to the waiter's hold.
pub(crate) async fn hand_over(agent: &mut Hired, scale: &Scale) -> Result<Round> {
    let rounds = scale.hand_overs + UNUSED;
    let limit = scale.limit + WHILE * u32::try_from(rounds)?;
    let question = format!("handover {} {rounds}", super::name("hand-over"));
    let answer = agent.ask(&question, limit).await?;
    Ok(Times::read(&answer["nanoseconds"], UNUSED)?.round())
}

/// The case of a hand-over from one process to another.
pub(crate) const TWO_PROCESSES: &str = "two processes";

/// The same between two processes, of which each has an agent.
pub(crate) async fn hand_over_between(
    holder: &mut Hired,
    waiter: &mut Hired,
    scale: &Scale,
) -> Result<Round> {
    let Scale { hand_overs, limit, .. } = *scale;
    let take = format!("take {}", super::name("hand-over"));
    let at = |answer: Value| match answer["at"].as_u64() {
        Some(at) => Ok(at),
        None => Err(format!("it does not say when: {answer}")),
    };
    let mut times = Vec::new();
    for _ in 0..hand_overs + UNUSED {
        holder.ask(&take, limit).await?;
        waiter.tell(&take).await?;
        sleep(a_while()).await;
        let let_go = at(holder.ask("let-go", limit).await?)?;
        let got = at(waiter.answer(limit).await?)?;
        waiter.ask("let-go", limit).await?;
        times.push(got.saturating_sub(let_go));
    }
    Ok(Times::read(&times.into(), UNUSED)?.round())
}
