use std::time::Duration;

use fastrand::Rng;
use lockkit_bench::Result;
use serde_json::Value;
use tokio::time::sleep;

use crate::hired::Hired;
use crate::run::Round;
use crate::scale::Scale;
use crate::servers::Backend;
use crate::times::Times;

/// How far the longest wait is above the least, in milliseconds: as far as most who poll ask apart, so
/// that they are met at any time between two polls.
const RANGE: f64 = 100.0;
/// The first one makes connections and subscriptions.
const UNUSED: usize = 1;

/// For how long somebody waits each time before the holder lets go. They lie evenly in their range, in
/// any order, so that few tell of all of it.
#[derive(Debug)]
pub(crate) struct Waits(Vec<Duration>);

impl Waits {
    pub(crate) fn draw(rng: &mut Rng, backend: Backend, scale: &Scale) -> Self {
        // The server's own lock service sets up what it waits by within 100 ms.
        let least = if matches!(backend, Backend::Etcd(_)) { 110.0 } else { 20.0 };
        let mut wait = |place: usize| {
            let share = (place as f64 + rng.f64()) / scale.hand_overs as f64;
            Duration::from_millis((least + RANGE * share) as u64)
        };
        let mut waits: Vec<_> = (0..scale.hand_overs).map(&mut wait).collect();
        waits.extend((0..UNUSED).map(wait));
        rng.shuffle(&mut waits);
        Self(waits)
    }
}

/// One client waits for what another holds, from the call of release to the waiter's hold.
pub(crate) async fn hand_over(agent: &mut Hired, waits: &Waits, scale: &Scale) -> Result<Round> {
    let mut question = format!("handover {}", super::name("hand-over"));
    for wait in &waits.0 {
        question += &format!(" {}", wait.as_millis());
    }
    let limit = scale.limit + waits.0.iter().sum::<Duration>();
    let answer = agent.ask(&question, limit).await?;
    Ok(Times::read(&answer["nanoseconds"], UNUSED)?.round())
}

/// The case of a hand-over from one process to another.
pub(crate) const TWO_PROCESSES: &str = "two processes";

/// The same between two processes, of which each has an agent.
pub(crate) async fn hand_over_between(
    holder: &mut Hired,
    waiter: &mut Hired,
    waits: &Waits,
    scale: &Scale,
) -> Result<Round> {
    let limit = scale.limit;
    let take = format!("take {}", super::name("hand-over"));
    let at = |answer: Value| match answer["at"].as_u64() {
        Some(at) => Ok(at),
        None => Err(format!("it does not say when: {answer}")),
    };
    let mut times = Vec::new();
    for wait in &waits.0 {
        holder.ask(&take, limit).await?;
        waiter.tell(&take).await?;
        sleep(*wait).await;
        let let_go = at(holder.ask("let-go", limit).await?)?;
        let got = at(waiter.answer(limit).await?)?;
        waiter.ask("let-go", limit).await?;
        times.push(got.saturating_sub(let_go));
    }
    Ok(Times::read(&times.into(), UNUSED)?.round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_lie_evenly_in_their_range() {
        let scale = Scale { hand_overs: 10, ..Scale::full() };
        for (backend, least) in [(Backend::Redis, 20), (Backend::Etcd(3), 110)] {
            let mut waits = Waits::draw(&mut Rng::with_seed(3), backend, &scale).0;
            assert_eq!(waits.len(), 10 + UNUSED);
            waits.sort();
            let tenth =
                |wait: &Duration| (wait.as_millis() as usize).checked_sub(least).unwrap() / 10;
            let tenths: std::collections::BTreeSet<_> = waits.iter().map(tenth).collect();
            assert!(tenths.into_iter().eq(0..10), "{waits:?}");
        }
    }
}
