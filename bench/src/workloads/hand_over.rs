use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::time::sleep;

use super::until_refused;
use crate::load::Times;
use crate::{Reading, Result, Scale, Subject, Workload};

/// How long a waiter that was refused has until its subscription stands.
const SETTLE: Duration = Duration::from_millis(2);

/// One client waits for what another holds, from the call of release to the waiter's guard.
#[derive(Clone, Copy, Debug)]
pub struct HandOver;

#[async_trait]
impl Workload for HandOver {
    fn name(&self) -> &'static str {
        "hand-over"
    }

    fn about(&self) -> &'static str {
        "from the call of release to the guard of another client that waits"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        let (one, other) = (subject.client().await?, subject.client().await?);
        let (holder, waiter) = (one.lock("hand-over")?, other.lock("hand-over")?);
        let mut times = Times::new()?;
        let mut begun = None;
        loop {
            let guard = holder.acquire().await?;
            let refused = other.driver().refusal();
            let waiting = waiter.clone();
            let mut waiting = tokio::spawn(async move {
                let guard = waiting.acquire().await?;
                Ok::<_, lockkit::Error>((guard, Instant::now()))
            });
            until_refused(refused, &mut waiting).await?;
            sleep(SETTLE).await;
            let start = Instant::now();
            guard.release().await?;
            let (guard, granted) = waiting.await??;
            guard.release().await?;
            // The first one makes connections and subscriptions.
            let Some(begun) = begun else {
                begun = Some(Instant::now());
                continue;
            };
            times.note(granted.saturating_duration_since(start))?;
            if begun.elapsed() >= scale.slice {
                break;
            }
        }
        one.close().await;
        other.close().await;
        Ok(vec![Reading::of("", times.figures())])
    }
}
