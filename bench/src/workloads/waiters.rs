use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::GRANTED_TWICE;
use crate::process::cpu_time;
use crate::{Figure, Reading, Result, Scale, Subject, Unit, Workload};

/// Many wait for one lock, which goes through all of their hands.
#[derive(Clone, Copy, Debug)]
pub struct Waiters;

#[async_trait]
impl Workload for Waiters {
    fn name(&self) -> &'static str {
        "waiters"
    }

    fn about(&self) -> &'static str {
        "many waiters of one client, until each has had the lock"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        let (holder, client) = (subject.client().await?, subject.client().await?);
        let guard = holder.lock("waiters")?.acquire().await?;
        let mut waiting = JoinSet::new();
        let refused = client.driver().refusal();
        for _ in 0..scale.waiters {
            let lock = client.lock("waiters")?;
            waiting.spawn(async move { lock.acquire().await?.release().await });
        }
        tokio::select! {
            () = refused => (),
            // A waiter that ends while another holds has failed.
            Some(ended) = waiting.join_next() => {
                ended??;
                return Err(GRANTED_TWICE.into());
            }
        }
        // Until all have their places, where there are any.
        let settle = Duration::from_secs(1).min(scale.slice);
        let (before, cpu) = (client.driver().requests(), cpu_time());
        sleep(settle).await;
        let idle = (client.driver().requests() - before) as f64 / settle.as_secs_f64();
        let idle_cpu = (cpu_time() - cpu).as_secs_f64() / settle.as_secs_f64();

        let (before, begun) = (client.driver().requests(), Instant::now());
        guard.release().await?;
        while let Some(ended) = waiting.join_next().await {
            ended??;
        }
        let (waiters, took) = (scale.waiters as f64, begun.elapsed().as_secs_f64());
        let requests = (client.driver().requests() - before) as f64 / waiters;
        holder.close().await;
        client.close().await;
        Ok(vec![Reading::of(
            scale.waiters.to_string(),
            vec![
                Figure::new("grants", Unit::PerSecond, waiters / took),
                Figure::new("requests a grant", Unit::Count, requests),
                Figure::new("requests while waiting", Unit::PerSecond, idle),
                Figure::new("cpu per s of waiting", Unit::Time, idle_cpu),
            ],
        )])
    }
}
