use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::driver::Claim;

/// How long a slow request keeps the next one from passing: twice what the last finished one took,
/// within these bounds.
const LEAST_PATIENCE: Duration = Duration::from_millis(10);
const MOST_PATIENCE: Duration = Duration::from_millis(100);

/// Lets the asks of a crowd of waiters through a few at a time, first come, first served.
///
/// A request that is under way takes more room than a waiter, most of it in client libraries. A
/// thousand that are sent at once leave the process larger by as much as they took together; sent a
/// few at a time, they are done just as soon. None holds up the others: a request that is not done
/// after 10 ms, or up to 100 ms where a server is that busy, lets the next one pass. A claim that
/// tries only once does not wait, and passes at once.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::driver::{Claim, Turnstile};
/// use lockkit_core::{LockName, Namespace};
///
/// # async fn example() -> lockkit_core::Result<()> {
/// let turnstile = Turnstile::new(64);
/// let name = LockName::new(&Namespace::default(), "report")?;
/// let claim = Claim::new(name, Duration::from_secs(30)).waiting();
/// let answer = turnstile.pass(&claim, async || "the answer").await;
/// assert_eq!(answer, "the answer");
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct Turnstile {
    passes: Semaphore,
    abreast: usize,
    /// How long one of a crowd took, in milliseconds.
    pace: AtomicU32,
}

impl Turnstile {
    /// Lets this many pass at a time, and at least one.
    pub fn new(abreast: usize) -> Self {
        let abreast = abreast.clamp(1, Semaphore::MAX_PERMITS);
        Self { passes: Semaphore::new(abreast), abreast, pace: AtomicU32::new(0) }
    }

    /// Makes the claim's request when it is its turn, and sees it through. The request is boxed,
    /// and takes no room before that.
    ///
    /// # Cancel safety
    ///
    /// That of the request; nobody behind is held up.
    pub async fn pass<F: Future>(&self, claim: &Claim, request: impl FnOnce() -> F) -> F::Output {
        if !claim.is_to_be_told() {
            return Box::pin(request()).await;
        }
        let pass = self.passes.acquire().await.expect("the semaphore is never closed");
        // Most requests are not part of a crowd, and are spared the timer.
        if self.passes.available_permits() > self.abreast / 2 {
            return Box::pin(request()).await;
        }
        let under_way = async {
            let mut request = pin!(request());
            let begun = Instant::now();
            let answer = select! {
                biased;
                answer = &mut request => answer,
                () = sleep(self.patience()) => {
                    drop(pass);
                    request.await
                }
            };
            let took = begun.elapsed().as_millis().try_into().unwrap_or(u32::MAX);
            self.pace.store(took, Ordering::Relaxed);
            answer
        };
        Box::pin(under_way).await
    }

    fn patience(&self) -> Duration {
        let pace = Duration::from_millis(self.pace.load(Ordering::Relaxed).into());
        (2 * pace).clamp(LEAST_PATIENCE, MOST_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::task::{JoinSet, yield_now};
    use tokio::time::{Instant, advance, sleep};

    use super::Turnstile;
    use crate::driver::Claim;
    use crate::{LockName, Namespace};

    fn claim() -> Claim {
        Claim::new(LockName::new(&Namespace::default(), "a").unwrap(), Duration::from_secs(30))
    }

    fn waiting() -> Claim {
        claim().waiting()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_passes_a_few_at_a_time_and_in_order() {
        let (turnstile, begun) = (Arc::new(Turnstile::new(3)), Arc::new(AtomicUsize::new(0)));
        let mut crowd = JoinSet::new();
        for number in 0..10 {
            let (turnstile, begun) = (turnstile.clone(), begun.clone());
            crowd.spawn(async move {
                let request = async || {
                    assert_eq!(begun.fetch_add(1, Relaxed), number);
                    sleep(Duration::from_millis(1)).await;
                };
                let claim = if number % 2 == 0 { waiting() } else { claim().listening() };
                turnstile.pass(&claim, request).await;
            });
        }
        for passed in [3, 6, 9, 10] {
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(begun.load(Relaxed), passed);
            advance(Duration::from_millis(1)).await;
        }
        crowd.join_all().await;
    }

    #[tokio::test]
    async fn a_turnstile_for_nobody_lets_one_pass_and_one_for_everybody_is_one() {
        for abreast in [0, usize::MAX] {
            Turnstile::new(abreast).pass(&waiting(), async || ()).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_given_the_time_that_it_needs() {
        const BUSY: Duration = Duration::from_millis(45);
        let turnstile = Arc::new(Turnstile::new(3));
        let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (mut crowd, start) = (JoinSet::new(), Instant::now());
        for _ in 0..100 {
            let (turnstile, under_way, most) = (turnstile.clone(), under_way.clone(), most.clone());
            crowd.spawn(async move {
                let request = async || {
                    let number = under_way.fetch_add(1, Relaxed) + 1;
                    // By then one was done that tells how long it takes, and so were those who
                    // passed before.
                    if start.elapsed() > 3 * BUSY {
                        most.fetch_max(number, Relaxed);
                    }
                    sleep(BUSY).await;
                    under_way.fetch_sub(1, Relaxed);
                };
                turnstile.pass(&waiting(), request).await;
            });
        }
        crowd.join_all().await;
        assert_eq!(most.load(Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_held_up_by_what_takes_long_or_is_dropped() {
        let turnstile = Arc::new(Turnstile::new(1));
        let silent = tokio::spawn({
            let turnstile = turnstile.clone();
            async move { turnstile.pass(&waiting(), pending::<()>).await }
        });
        yield_now().await;
        let start = Instant::now();
        turnstile.pass(&waiting(), async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
        turnstile.pass(&waiting(), async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
        silent.abort();
        drop(Box::pin(turnstile.pass(&waiting(), pending::<()>)));
        turnstile.pass(&waiting(), async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn who_tries_once_does_not_stand_behind_a_crowd() {
        let turnstile = Arc::new(Turnstile::new(1));
        let mut crowd = JoinSet::new();
        for _ in 0..10 {
            let turnstile = turnstile.clone();
            crowd.spawn(async move { turnstile.pass(&waiting(), pending::<()>).await });
        }
        yield_now().await;
        let start = Instant::now();
        turnstile.pass(&claim(), async || ()).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
