use std::time::Duration;

use lockkit_bench::Result;

use crate::hired::Hired;
use crate::run::Round;
use crate::scale::Scale;
use crate::times::Times;

/// The longest that a waiter waits before the holder lets go.
const WHILE: Duration = Duration::from_millis(250);
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
