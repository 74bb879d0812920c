use lockkit_bench::Result;

use crate::hired::Hired;
use crate::run::Round;
use crate::scale::Scale;
use crate::times::Times;

/// How many pairs tell how many there is time for.
const PROBE: usize = 12;
/// The first ones of a client make connections and load what is to be run.
const UNUSED: usize = 2;
/// More tell nothing new.
const MOST: f64 = 20_000.0;

/// Acquire and release, nobody else about.
pub(crate) async fn uncontended(agent: &mut Hired, scale: &Scale) -> Result<Round> {
    let name = super::name("uncontended");
    let probed = agent.ask(&format!("uncontended {name} {PROBE}"), scale.limit).await?;
    let pair = Times::read(&probed["nanoseconds"], UNUSED)?.median();
    let pairs = (scale.slice.as_secs_f64() / pair).clamp(PROBE as f64, MOST) as usize;
    let limit = scale.limit + scale.slice;
    let answer = agent.ask(&format!("uncontended {name} {pairs}"), limit).await?;
    let times = Times::read(&answer["nanoseconds"], UNUSED)?;
    Ok(Round { figures: times.figures(), distribution: times.distribution() })
}
