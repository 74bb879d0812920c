use std::time::Instant;

use async_trait::async_trait;
use tokio::time::sleep;

use crate::load::cpu_time;
use crate::{Figure, Reading, Result, Scale, Subject, Unit, Workload};

/// How often all holds are looked at.
const LOOKS: u32 = 20;

/// One client takes many locks and keeps them for a lease.
#[derive(Clone, Copy, Debug)]
pub struct ManyNames;

#[async_trait]
impl Workload for ManyNames {
    fn name(&self) -> &'static str {
        "many-names"
    }

    fn about(&self) -> &'static str {
        "many locks of one client, kept for a lease: `least left` of a lease at any time"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        let client = subject.client().await?.with_lease(scale.lease)?;
        let lease = client.lease();
        let kept_for = lease.min(scale.lease);
        let begun = Instant::now();
        let mut guards = Vec::with_capacity(scale.names);
        for number in 0..scale.names {
            guards.push(client.lock(&format!("many/{number}"))?.acquire().await?);
        }
        let taken = scale.names as f64 / begun.elapsed().as_secs_f64();

        let (before, cpu) = (client.driver().requests(), cpu_time());
        let kept = Instant::now();
        let mut least_left = lease;
        for _ in 0..LOOKS {
            sleep(kept_for / LOOKS).await;
            let left = guards.iter().filter_map(|guard| guard.valid_for()).min();
            least_left = least_left.min(left.unwrap_or(lease));
        }
        let kept = kept.elapsed().as_secs_f64() * scale.names as f64 / 1_000.0;
        let cpu = (cpu_time() - cpu).as_secs_f64() / kept;
        let requests = (client.driver().requests() - before) as f64 / kept / 1_000.0;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();

        let begun = Instant::now();
        for guard in guards.drain(..) {
            if guard.is_held() {
                guard.release().await?;
            }
        }
        let released = (scale.names - lost) as f64 / begun.elapsed().as_secs_f64();
        client.close().await;
        Ok(vec![Reading::of(
            format!("{} for {kept_for:?}", scale.names),
            vec![
                Figure::new("taken", Unit::PerSecond, taken),
                Figure::new("released", Unit::PerSecond, released),
                Figure::new("requests a hold", Unit::PerSecond, requests),
                Figure::new("cpu per s of 1000", Unit::Time, cpu),
                Figure::new("least left", Unit::Ratio, least_left.div_duration_f64(lease)),
                Figure::new("lost", Unit::Count, lost as f64),
            ],
        )])
    }
}
