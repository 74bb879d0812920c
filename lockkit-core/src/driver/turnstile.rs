use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// For how long one that has passed is waited for.
const PATIENCE: Duration = Duration::from_millis(10);

/// Lets a crowd of requests through a few at a time, first come, first served.
///
/// A request that is under way takes more room than one who waits for the lock, most of it in client
/// libraries. A thousand that are sent at once leave the process as much larger as they took
/// together; sent a few at a time they are done as soon. None holds up the others: what is not
/// done after 10 ms, since the way is long or a server is silent, lets the next one pass.
///
/// ```
/// use lockkit_core::driver::Turnstile;
///
/// # async fn example() {
/// let turnstile = Turnstile::new(64);
/// let answer = turnstile.pass(async || "the answer").await;
/// assert_eq!(answer, "the answer");
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(example());
/// ```
#[derive(Debug)]
pub struct Turnstile {
    passes: Semaphore,
    abreast: usize,
}

impl Turnstile {
    /// For so many at a time.
    pub fn new(abreast: usize) -> Self {
        Self { passes: Semaphore::new(abreast), abreast }
    }

    /// Makes the request when it is its turn, and sees it through. It is in a box, and takes no room
    /// before.
    ///
    /// # Cancel safety
    ///
    /// As the request; nobody behind is held up.
    pub async fn pass<F: Future>(&self, request: impl FnOnce() -> F) -> F::Output {
        let pass = self.passes.acquire().await.expect("the semaphore is never closed");
        // Most requests are no crowd, and are spared the timer.
        let is_crowded = self.passes.available_permits() <= self.abreast / 2;
        let under_way = async {
            let mut request = pin!(request());
            select! {
                biased;
                answer = &mut request => return answer,
                () = sleep(PATIENCE), if is_crowded => drop(pass),
            }
            request.await
        };
        Box::pin(under_way).await
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
                turnstile.pass(request).await;
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

    #[tokio::test(start_paused = true)]
    async fn nobody_is_held_up_by_what_takes_long_or_is_dropped() {
        let turnstile = Arc::new(Turnstile::new(1));
        let silent = tokio::spawn({
            let turnstile = turnstile.clone();
            async move { turnstile.pass(pending::<()>).await }
        });
        yield_now().await;
        let start = Instant::now();
        turnstile.pass(async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
        turnstile.pass(async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
        silent.abort();
        drop(Box::pin(turnstile.pass(pending::<()>)));
        turnstile.pass(async || ()).await;
        assert_eq!(start.elapsed().as_millis(), 10);
    }
}
