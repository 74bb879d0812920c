use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout_at};

use crate::load::{Times, fairness};
use crate::{Client, Figure, Reading, Result, Scale, Subject, Unit, Workload};

/// What is done under the lock.
const SECTIONS: [(Duration, &str); 2] =
    [(Duration::ZERO, "empty"), (Duration::from_millis(1), "1 ms")];

/// Several clients want one lock all the time.
#[derive(Clone, Copy, Debug)]
pub struct Contended;

#[async_trait]
impl Workload for Contended {
    fn name(&self) -> &'static str {
        "contended"
    }

    fn about(&self) -> &'static str {
        "clients that want one lock all the time; Jain's index is 1 where all get as much"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        let mut readings = Vec::new();
        for &number in &scale.clients {
            let mut clients = Vec::new();
            for _ in 0..number {
                clients.push(Arc::new(subject.client().await?));
            }
            for (section, name) in SECTIONS {
                let figures = contend(&clients, section, scale.slice).await?;
                readings.push(Reading::of(format!("{number} clients, {name}"), figures));
            }
            for client in &clients {
                client.close().await;
            }
        }
        Ok(readings)
    }
}

async fn contend(
    clients: &[Arc<Client>],
    section: Duration,
    slice: Duration,
) -> Result<Vec<Figure>> {
    let requests = || clients.iter().map(|client| client.driver().requests()).sum::<u64>();
    let before = requests();
    let ready = Arc::new(Barrier::new(clients.len()));
    let mut contenders = JoinSet::new();
    for client in clients {
        let (client, ready) = (client.clone(), ready.clone());
        contenders.spawn(async move {
            let lock = client.lock("contended")?;
            let mut waits = Times::new()?;
            ready.wait().await;
            let end = Instant::now() + slice;
            let [mut grants, mut in_time] = [0_u64; 2];
            loop {
                let start = Instant::now();
                if start >= end {
                    break;
                }
                // Those who still wait at the end are those who wait longest, so they are waited
                // for.
                let granted = timeout_at(end + slice, lock.acquire()).await;
                // For a wait that is still not over, this is the least that it takes.
                waits.note(start.elapsed())?;
                let Ok(guard) = granted else { break };
                let guard = guard?;
                grants += 1;
                in_time += u64::from(Instant::now() <= end);
                if !section.is_zero() {
                    sleep(section).await;
                }
                guard.release().await?;
                // They are clients of their own, and none of them has this thread to itself.
                yield_now().await;
            }
            Result::Ok((waits, grants, in_time))
        });
    }
    let (mut waits, mut grants, mut shares) = (Times::new()?, 0, Vec::new());
    while let Some(ended) = contenders.join_next().await {
        let (own, all, in_time) = ended??;
        waits.add(&own)?;
        grants += all;
        shares.push(in_time);
    }
    let in_time = shares.iter().sum::<u64>() as f64;
    let mut figures = vec![Figure::new("grants", Unit::PerSecond, in_time / slice.as_secs_f64())];
    figures.extend(waits.figures());
    figures.extend(waits.longest());
    figures.extend(fairness(&shares).map(|index| Figure::new("Jain", Unit::Ratio, index)));
    if grants > 0 {
        let asked = (requests() - before) as f64;
        figures.push(Figure::new("requests a grant", Unit::Count, asked / grants as f64));
    }
    Ok(figures)
}
