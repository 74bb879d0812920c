//! What a lock promises by its type, as the driver is asked for it.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Claim, Driver, DriverError, Grant, Release, Renewal};
use lockkit_core::{Capabilities, Fairness, Lease, Liveness, Lock, Locker};

use crate::TTL;

/// Grants everything, and remembers who wanted to be served in order.
#[derive(Clone, Debug, Default)]
struct OnRequest {
    asked: Arc<Mutex<Vec<bool>>>,
}

#[async_trait]
impl Driver for OnRequest {
    fn id(&self) -> &'static str {
        "on request"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Liveness::Lease).fairness(Fairness::OnRequest)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.asked.lock().unwrap().push(claim.is_fair());
        Ok(Attempt::Granted(Grant::new()))
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        Ok(Renewal::Held(Default::default()))
    }

    async fn release(&self, _: &Claim) -> Result<Release, DriverError> {
        Ok(Release::Freed)
    }
}

async fn is_fair<O: 'static, E: 'static>(backend: &OnRequest, lock: &Lock<O, E>) -> bool {
    drop(lock.acquire().await.unwrap());
    drop(lock.acquire_timeout(TTL).await.unwrap());
    // Who does not wait has no place in any order.
    drop(lock.try_acquire().await.unwrap());
    match backend.asked.lock().unwrap().split_off(0)[..] {
        [first, second, false] if first == second => first,
        ref asked => panic!("{asked:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_fair_lock_is_fair_whatever_else_it_is() {
    let backend = OnRequest::default();
    let lock = Locker::new(backend.clone()).lock("a").unwrap();
    let lease = Lease::new(TTL);
    assert!(!is_fair(&backend, &lock).await);
    assert!(!is_fair(&backend, &lock.clone().leased(lease).unwrap()).await);
    let fair = lock.clone().fair().unwrap();
    assert!(is_fair(&backend, &fair).await && is_fair(&backend, &fair.clone()).await);
    let fair_first = fair.leased(lease).unwrap();
    let leased_first = lock.leased(lease).unwrap().fair().unwrap();
    assert_eq!((fair_first.lease(), leased_first.lease()), (lease, lease));
    assert!(is_fair(&backend, &fair_first).await && is_fair(&backend, &leased_first).await);
}
