use std::time::Instant;

use async_trait::async_trait;

use crate::process::cpu_time;
use crate::{Figure, Keeping, Reading, Result, Scale, Subject, Unit, Workload};

/// One client takes many locks and keeps them for a lease.
#[derive(Clone, Copy, Debug)]
pub struct ManyNames;

#[async_trait]
impl Workload for ManyNames {
    fn name(&self) -> &'static str {
        "many-names"
    }

    fn about(&self) -> &'static str {
        "many locks of one client, kept for a lease: `least left` of a lease at any time, `late` renewals"
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
        let Keeping { least_left, late, lost } = Keeping::watch(&guards, lease, kept_for).await;
        let kept = kept.elapsed().as_secs_f64() * scale.names as f64 / 1_000.0;
        let cpu = (cpu_time() - cpu).as_secs_f64() / kept;
        let requests = (client.driver().requests() - before) as f64 / kept / 1_000.0;

        let begun = Instant::now();
        for guard in guards.drain(..) {
            if guard.is_held() {
                guard.release().await?;
            }
        }
        let released = (scale.names as u64 - lost) as f64 / begun.elapsed().as_secs_f64();
        client.close().await;
        Ok(vec![Reading::of(
            format!("{} for {kept_for:?}", scale.names),
            vec![
                Figure::new("taken", Unit::PerSecond, taken),
                Figure::new("released", Unit::PerSecond, released),
                Figure::new("requests a hold", Unit::PerSecond, requests),
                Figure::new("cpu per s of 1000", Unit::Time, cpu),
                Figure::new("least left", Unit::Ratio, least_left.div_duration_f64(lease)),
                Figure::new("late", Unit::Count, late as f64),
                Figure::new("lost", Unit::Count, lost as f64),
            ],
        )])
    }
}
