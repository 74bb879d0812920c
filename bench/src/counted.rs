use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use lockkit::Capabilities;
use lockkit::driver::{
    Attempt, Change, Claim, Driver, DriverError, Inspect, Node, OwnerId, Release, Renewal,
};
use tokio::sync::watch;

/// A driver that counts what it is asked.
#[derive(Debug)]
pub struct Counted {
    driver: Arc<dyn Driver>,
    requests: AtomicU64,
    refusals: watch::Sender<Refusals>,
}

#[derive(Debug, Default)]
struct Refusals {
    number: u64,
    /// Whose asks were refused, since somebody began to wait for that.
    claims: HashSet<OwnerId>,
}

impl Counted {
    /// Counts what that driver is asked from now on.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, requests: AtomicU64::new(0), refusals: watch::Sender::default() }
    }

    /// How many times a lock was asked for, renewed or released.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Resolves when a claim was refused that has asked since this was called.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub fn refusal(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut refusals = self.refusals.subscribe();
        let before = refusals.borrow_and_update().number;
        async move {
            // The other end lives as long as the driver; without it there is nothing to wait for.
            _ = refusals.wait_for(|refusals| refusals.number > before).await;
        }
    }

    /// Resolves when `number` claims were refused that have asked since this was called.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub fn refused(&self, number: usize) -> impl Future<Output = ()> + Send + use<> {
        let mut refusals = self.refusals.subscribe();
        self.refusals.send_modify(|refusals| refusals.claims.clear());
        async move {
            // As above.
            _ = refusals.wait_for(|refusals| refusals.claims.len() >= number).await;
        }
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Driver for Counted {
    fn id(&self) -> &'static str {
        self.driver.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.count();
        let answer = self.driver.try_acquire(claim).await;
        if let Ok(Attempt::Taken(_)) = answer {
            let is_awaited = self.refusals.receiver_count() > 0;
            self.refusals.send_modify(|refusals| {
                refusals.number += 1;
                if is_awaited {
                    refusals.claims.insert(claim.owner());
                }
            });
        }
        answer
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
        self.count();
        self.driver.renew(claim).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
        self.count();
        self.driver.release(claim).await
    }

    async fn changed(&self, claim: &Claim) -> Change {
        self.driver.changed(claim).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        self.driver.inspect()
    }

    fn node(&self) -> Option<&dyn Node> {
        self.driver.node()
    }

    async fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>, DriverError> {
        self.driver.descriptor(claim).await
    }

    async fn close(&self) {
        self.driver.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Poll;
    use std::time::Duration;

    use lockkit::driver::{Attempt, Claim, Driver as _};
    use lockkit::memory::MemoryDriver;
    use lockkit::{LockName, Namespace};

    use super::Counted;

    #[tokio::test]
    async fn claims_that_are_refused_count_once_each() {
        let counted = Counted::new(Arc::new(MemoryDriver::new()));
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let [held, first, second] =
            [(); 3].map(|()| Claim::new(name.clone(), Duration::from_secs(30)).waiting());
        assert!(matches!(counted.try_acquire(&held).await, Ok(Attempt::Granted(_))));
        let mut refused = pin!(counted.refused(2));
        for claim in [&first, &first, &first] {
            assert!(matches!(counted.try_acquire(claim).await, Ok(Attempt::Taken(_))));
            assert!(poll_fn(|cx| Poll::Ready(refused.as_mut().poll(cx).is_pending())).await);
        }
        assert!(matches!(counted.try_acquire(&second).await, Ok(Attempt::Taken(_))));
        refused.await;
    }
}
