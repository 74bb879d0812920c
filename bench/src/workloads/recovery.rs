use std::fmt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::sleep;

use super::until_refused;
use crate::{Figure, Reading, Result, Scale, Subject, Unit, Workload};

/// The process that holds a lock is killed.
pub struct Recovery {
    holder: Box<MakeHolder>,
}

type MakeHolder = dyn Fn(&Holder<'_>) -> Command + Send + Sync;

/// What a program that can be killed is to hold.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Where the lock is.
    pub subject: &'a Subject,
    /// Which lock.
    pub name: &'a str,
    /// With which lease; `None` where that is not for the holder to say.
    pub lease: Option<Duration>,
}

impl Recovery {
    /// With a program that takes the lock, writes a line to its standard output once it has it, and
    /// keeps it until it is killed.
    pub fn with(holder: impl Fn(&Holder<'_>) -> Command + Send + Sync + 'static) -> Self {
        Self { holder: Box::new(holder) }
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery").finish_non_exhaustive()
    }
}

#[async_trait]
impl Workload for Recovery {
    fn name(&self) -> &'static str {
        "recovery"
    }

    fn about(&self) -> &'static str {
        "from the death of the process that holds to the guard of another that waits"
    }

    async fn round(&self, subject: &Subject, scale: &Scale) -> Result<Vec<Reading>> {
        if !subject.is_shared() {
            return Err("these locks end with the process that makes them".into());
        }
        let client = subject.client().await?.with_lease(scale.lease)?;
        let lease = client.has_leases().then(|| client.lease());
        let name = "recovery";
        let mut holder = (self.holder)(&Holder { subject, name: &subject.name(name), lease });
        let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut holder = holder.spawn()?;
        let output = holder.stdout.take().ok_or("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        lines.next_line().await?.ok_or("the program that was to hold the lock has ended")?;

        let refused = client.driver().refusal();
        let lock = client.lock(name)?;
        let mut waiting = tokio::spawn(async move {
            let guard = lock.acquire().await?;
            Ok::<_, lockkit::Error>((guard, Instant::now()))
        });
        until_refused(refused, &mut waiting).await?;
        // Renewals are due at a third: the holder is killed at any time between two of them.
        sleep(client.lease().min(scale.lease) / 3 * fastrand::u32(0..100) / 100).await;
        let killed = Instant::now();
        holder.start_kill()?;
        let (guard, granted) = waiting.await??;
        guard.release().await?;
        holder.wait().await?;
        client.close().await;

        let time = granted.saturating_duration_since(killed);
        let mut figures = vec![Figure::new("free after", Unit::Time, time.as_secs_f64())];
        if let Some(lease) = lease {
            figures.push(Figure::new("of the lease", Unit::Ratio, time.div_duration_f64(lease)));
        }
        Ok(vec![Reading::of("", figures)])
    }
}
