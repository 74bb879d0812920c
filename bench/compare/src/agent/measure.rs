//! What is measured: the same as by the agents of other libraries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkit_bench::Result;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::{Client, Library};

pub(super) async fn uncontended(
    library: &impl Library,
    name: &str,
    pairs: usize,
) -> Result<Vec<Duration>> {
    let client = library.connect().await?;
    let lock = client.lock(name)?;
    let mut times = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let start = Instant::now();
        let hold = client.acquire(&lock).await?;
        client.release(&lock, hold).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

pub(super) async fn hand_over(
    library: &impl Library,
    name: &str,
    waits: &[Duration],
) -> Result<Vec<Duration>> {
    let (holder, waiter) = (library.connect().await?, Arc::new(library.connect().await?));
    if let Some(times) = holder.hand_overs(&waiter, name, waits).await? {
        return Ok(times);
    }
    let (lock, awaited) = (holder.lock(name)?, Arc::new(waiter.lock(name)?));
    let mut times = Vec::with_capacity(waits.len());
    for wait in waits {
        let hold = holder.acquire(&lock).await?;
        let (waiter, awaited) = (Arc::clone(&waiter), Arc::clone(&awaited));
        let waiting = tokio::spawn(async move {
            let hold = waiter.acquire(&awaited).await?;
            let got = Instant::now();
            waiter.release(&awaited, hold).await?;
            Result::Ok(got)
        });
        let start = let_go_after(*wait, || holder.release(&lock, hold)).await?;
        times.push(waiting.await??.saturating_duration_since(start));
    }
    Ok(times)
}

/// A client whose hold outlasts a question. Its times are of the host's clock, in nanoseconds, which is
/// the same for all processes.
pub(super) struct Standing<C: Client> {
    name: String,
    client: C,
    lock: C::Lock,
    hold: Option<C::Hold>,
}

impl<C: Client> Standing<C> {
    pub(super) async fn at(library: &impl Library<Client = C>, name: &str) -> Result<Self> {
        let client = library.connect().await?;
        let lock = client.lock(name)?;
        Ok(Self { name: name.into(), client, lock, hold: None })
    }

    pub(super) fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Says when it had the lock.
    pub(super) async fn take(&mut self) -> Result<u64> {
        self.hold = Some(self.client.acquire(&self.lock).await?);
        now()
    }

    /// Says when release was called.
    pub(super) async fn let_go(&mut self) -> Result<u64> {
        let hold = self.hold.take().ok_or("nothing is held")?;
        let called = now()?;
        self.client.release(&self.lock, hold).await?;
        Ok(called)
    }
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

/// When it was called.
pub(crate) async fn let_go_after<F: Future<Output = Result<()>>>(
    wait: Duration,
    let_go: impl FnOnce() -> F,
) -> Result<Instant> {
    sleep(wait).await;
    let start = Instant::now();
    let_go().await?;
    Ok(start)
}

/// For each client, how long it waited for each grant.
pub(super) async fn contended(
    library: &impl Library,
    name: &str,
    clients: usize,
    section: Duration,
    time: Duration,
) -> Result<Vec<Vec<Duration>>> {
    let (ready, is_held) = (Arc::new(Barrier::new(clients)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let client = library.connect().await?;
        let (ready, is_held) = (Arc::clone(&ready), Arc::clone(&is_held));
        let lock = client.lock(name)?;
        let own = format!("{name}-{number}");
        tasks.spawn(async move {
            client.prepare(&own, clients).await?;
            ready.wait().await;
            let (began, mut waits) = (Instant::now(), Vec::new());
            while began.elapsed() < time {
                let start = Instant::now();
                let hold = client.acquire(&lock).await?;
                waits.push(start.elapsed());
                work(section, &is_held).await?;
                client.release(&lock, hold).await?;
            }
            Result::Ok((number, waits))
        });
    }
    let mut all = vec![Vec::new(); clients];
    while let Some(ended) = tasks.join_next().await {
        let (number, waits) = ended??;
        all[number] = waits;
    }
    Ok(all)
}

/// What is done under a lock: takes so long, and is done by one at a time, or the lock is none. A timer
/// of the runtime counts in whole milliseconds and would add up to one, which is much to a section of
/// one, and other languages do not have.
async fn work(section: Duration, is_held: &AtomicBool) -> Result<()> {
    if section.is_zero() {
        return Ok(());
    }
    if is_held.swap(true, Ordering::SeqCst) {
        return Err("two of its clients held the same lock".into());
    }
    spawn_blocking(move || std::thread::sleep(section)).await?;
    is_held.store(false, Ordering::SeqCst);
    Ok(())
}

/// Holds it for good: no destructor runs.
pub(super) async fn hold(library: &impl Library, name: &str) -> Result<()> {
    let client = library.connect().await?;
    let lock = client.lock(name)?;
    std::mem::forget(client.acquire(&lock).await?);
    std::mem::forget((client, lock));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets everybody in.
    struct Open;

    impl Library for Open {
        type Client = Self;

        async fn connect(&self) -> Result<Self> {
            Ok(Self)
        }
    }

    impl Client for Open {
        type Lock = ();
        type Hold = ();

        fn lock(&self, _: &str) -> Result<()> {
            Ok(())
        }

        async fn acquire(&self, (): &()) -> Result<()> {
            Ok(())
        }

        async fn release(&self, (): &(), (): ()) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_lets_two_in_is_not_measured() {
        const LONG: Duration = Duration::from_secs(60);
        let measured = contended(&Open, "open", 2, Duration::from_millis(1), LONG).await;
        assert_eq!(measured.unwrap_err().to_string(), "two of its clients held the same lock");
    }
}
