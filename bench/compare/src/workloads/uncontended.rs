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

/// Acquire and release, nobody else about: a round of one agent, turn by turn.
pub(crate) struct Uncontended {
    name: String,
    pairs: usize,
    times: Times,
}

impl Uncontended {
    /// In how many turns a round is measured, so that what disturbs the machine for a second
    /// disturbs all alike.
    pub(crate) const TURNS: u32 = 3;

    /// Finds out how many pairs there is time for in a turn.
    pub(crate) async fn begin(agent: &mut Hired, scale: &Scale) -> Result<Self> {
        let name = super::name("uncontended");
        let probed = agent.ask(&format!("uncontended {name} {PROBE}"), scale.limit).await?;
        let pair = Times::read(&probed["nanoseconds"], UNUSED)?.median();
        let most = MOST / f64::from(Self::TURNS);
        let slice = scale.slice / Self::TURNS;
        let pairs = (slice.as_secs_f64() / pair).clamp(PROBE as f64, most) as usize;
        Ok(Self { name, pairs, times: Times::new()? })
    }

    /// One turn.
    pub(crate) async fn take_turn(&mut self, agent: &mut Hired, scale: &Scale) -> Result<()> {
        let question = format!("uncontended {} {}", self.name, self.pairs);
        let answer = agent.ask(&question, scale.limit + scale.slice).await?;
        self.times.add(&Times::read(&answer["nanoseconds"], UNUSED)?)
    }

    /// What all turns came to.
    pub(crate) fn end(self) -> Round {
        self.times.round()
    }
}
