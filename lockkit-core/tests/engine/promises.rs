//! What a lock promises by its type, as the driver is asked for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Attempt, Claim, Driver, DriverError, Grant, Release, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{
    AcquireOptions, Capabilities, DistributedLock, Error, FairLock, Fairness, Lease, LeasedLock,
    Liveness, Lock, LockExt as _, Locker, Owner, ReentrantLock, Renew,
};
use tokio::time::{Instant, sleep};

use crate::TTL;

/// Grants everything, and remembers who wanted to be served in order and when a hold was renewed.
#[derive(Clone, Debug)]
struct Generous {
    can: Capabilities,
    asked: Arc<Mutex<Vec<bool>>>,
    renewed: Arc<Mutex<Vec<Instant>>>,
}

impl Generous {
    fn new(can: Capabilities) -> Self {
        Self { can, asked: Arc::default(), renewed: Arc::default() }
    }
}

#[async_trait]
impl Driver for Generous {
    fn id(&self) -> &'static str {
        "generous"
    }

    fn capabilities(&self) -> Capabilities {
        self.can
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
        self.asked.lock().unwrap().push(claim.is_fair());
        Ok(Attempt::Granted(Grant::new()))
    }

    async fn renew(&self, _: &Claim) -> Result<Renewal, DriverError> {
        self.renewed.lock().unwrap().push(Instant::now());
        Ok(Renewal::Held(Default::default()))
    }

    async fn release(&self, _: &Claim) -> Result<Release, DriverError> {
        Ok(Release::Freed)
    }
}

async fn is_fair<O: 'static, E: 'static>(backend: &Generous, lock: &Lock<O, E>) -> bool {
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
    let backend = Generous::new(Capabilities::new(Liveness::Lease).fairness(Fairness::OnRequest));
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

#[tokio::test(start_paused = true)]
async fn a_lease_is_one_that_the_driver_can_keep() {
    let can = Capabilities::new(Liveness::Lease);
    let (most, all) = (Capabilities::MAX_TTL, Capabilities::MIN_TTL..=Capabilities::MAX_TTL);
    // A driver may narrow what leases there are, and not widen it.
    for (can, kept, usual) in [
        (can, all.clone(), 30),
        (can.ttl(Duration::from_millis(1), most * 2), all, 30),
        (can.ttl(TTL * 4, TTL * 8), TTL * 4..=TTL * 8, 40),
        (can.ttl(TTL, TTL * 2), TTL..=TTL * 2, 20),
    ] {
        let backend = Generous::new(can);
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        assert_eq!(Locker::new(backend.clone()).lease(), Lease::new(Duration::from_secs(usual)));
        let step = Duration::from_millis(1);
        for (ttl, is_kept) in [
            (*kept.start(), true),
            (*kept.end(), true),
            (*kept.start() - step, false),
            (*kept.end() + step, false),
        ] {
            let leased = lock.clone().leased(Lease::new(ttl));
            assert_eq!(leased.is_ok(), is_kept, "{ttl:?} of {kept:?}");
            let once = lock.acquire_with(AcquireOptions::new().ttl(ttl)).await;
            assert_eq!(once.is_ok(), is_kept, "{ttl:?} of {kept:?}");
            let built = Locker::builder(backend.clone()).ttl(ttl).build();
            assert_eq!(built.is_ok(), is_kept, "{ttl:?} of {kept:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_ends_with_a_session_has_no_lease_of_its_own() {
    for liveness in [Liveness::Session, Liveness::Process] {
        let backend = Generous::new(Capabilities::new(liveness));
        let lock = Locker::new(backend.clone()).lock("a").unwrap();
        for refused in [
            lock.clone().leased(Lease::new(TTL)).map(drop),
            lock.acquire_with(AcquireOptions::new().ttl(TTL)).await.map(drop),
            lock.clone().fair().map(drop),
            Locker::builder(backend).lease(Lease::new(TTL).renew(Renew::Never)).build().map(drop),
        ] {
            let Err(Error::Unsupported { driver, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(driver, "generous");
        }
        drop(lock.acquire().await.unwrap());
    }
}

/// Nothing there is good for a time only.
#[tokio::test(start_paused = true)]
async fn what_ends_with_its_process_has_no_lease_though_its_longest_hold_is_bounded() {
    for (liveness, ttl) in [(Liveness::Process, None), (Liveness::Lease, Some(TTL))] {
        let backend = Generous::new(Capabilities::new(liveness));
        let lease = Lease::new(TTL).max_hold(TTL * 100);
        let locker = Locker::builder(backend).lease(lease).build().unwrap();
        let guard = locker.lock("a").unwrap().acquire().await.unwrap();
        assert_eq!(guard.ttl(), ttl, "{liveness:?}");
        assert!(guard.valid_for().is_some());
    }
}

/// A backend that has thousands of holds is not asked for all of them at once.
#[tokio::test(start_paused = true)]
async fn holds_that_began_together_are_not_renewed_together() {
    let backend = Generous::new(Capabilities::new(Liveness::Lease));
    let locker = Locker::builder(backend.clone()).ttl(TTL).build().unwrap();
    let start = Instant::now();
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(locker.lock(&number.to_string()).unwrap().acquire().await.unwrap());
    }
    sleep(TTL * 2 / 5).await;
    let renewed: Vec<_> = backend.renewed.lock().unwrap().iter().map(|at| *at - start).collect();
    assert_eq!(renewed.len(), guards.len());
    let (first, last) = (renewed[0], renewed[renewed.len() - 1]);
    assert!(last - first > TTL / 25, "all between {first:?} and {last:?}");
    assert!(last <= TTL / 3 + Duration::from_millis(2), "{last:?} is late");
}

/// Generic code that takes any lock takes one that was chosen at run time.
#[tokio::test]
async fn a_pointer_to_a_lock_is_a_lock() {
    async fn is_taken(lock: impl DistributedLock) -> bool {
        lock.try_acquire().await.unwrap().is_none()
    }
    async fn depth(lock: impl ReentrantLock) -> usize {
        let owner = Owner::new();
        let _guard = lock.acquire_as(&owner, AcquireOptions::new()).await.unwrap();
        lock.depth(&owner)
    }
    async fn extend(lock: impl LeasedLock) {
        let guard = lock.acquire_leased(AcquireOptions::new()).await.unwrap();
        guard.extend(lock.lease().ttl()).await.unwrap();
    }
    fn name_of(lock: impl FairLock) -> String {
        lock.name().as_str().into()
    }
    let locker = Locker::new(MemoryDriver::new());
    let lock = |name| locker.lock(name).unwrap();
    let [any, other]: [Arc<dyn DistributedLock>; 2] =
        ["a", "b"].map(|name| Arc::new(lock(name)) as _);
    let _guard = any.acquire().await.unwrap();
    assert_eq!((is_taken(any).await, is_taken(other).await), (true, false));
    assert_eq!(depth(Arc::new(lock("b")) as Arc<dyn ReentrantLock>).await, 1);
    let leased = lock("c").leased(Lease::new(TTL)).unwrap();
    extend(Box::new(leased) as Box<dyn LeasedLock>).await;
    assert_eq!(name_of(Arc::new(lock("d").fair().unwrap()) as Arc<dyn FairLock>), "d");
}
