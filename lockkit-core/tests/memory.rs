//! What the memory driver promises beyond the conformance suite.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver as _};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Error, FencingToken, Grade, LockName, Locker, Namespace};

async fn token_of_a_grant() -> Option<FencingToken> {
    let name = LockName::new(&Namespace::default(), "a").unwrap();
    let claim = Claim::new(name, Duration::from_secs(30));
    // Nobody else has these locks, so they go with it.
    let driver = MemoryDriver::shared("comes back");
    match driver.try_acquire(&claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fencing_token(),
        taken => panic!("{taken:?}"),
    }
}

/// What remembers the highest token may live longer than who had the locks.
#[tokio::test]
async fn tokens_rise_also_where_locks_were_given_up_and_come_back() {
    let first = token_of_a_grant().await;
    assert!(token_of_a_grant().await > first);
}

#[tokio::test]
async fn locks_are_shared_by_those_who_name_them_alike() {
    let connect = |text: &str| Locker::new(MemoryDriver::connect(&text.parse().unwrap()).unwrap());
    let is_free =
        async |locker: &Locker| locker.lock("a").unwrap().try_acquire().await.unwrap().is_some();
    let (one, alike) = (connect("memory:one"), connect("memory:one?ttl=1s"));
    let _guard = one.lock("a").unwrap().acquire().await.unwrap();
    assert!(!is_free(&alike).await);
    assert!(is_free(&connect("memory:other")).await);

    let nameless = connect("memory:");
    let _guard = nameless.lock("a").unwrap().acquire().await.unwrap();
    assert!(is_free(&connect("memory:")).await);
}

#[test]
fn a_url_that_has_no_meaning_is_refused() {
    for bad in ["memory://host", "memory:///one", "memory:one?tll=1s"] {
        let refused = MemoryDriver::connect(&bad.parse().unwrap());
        assert!(matches!(refused, Err(Error::Config { .. })), "{bad}: {refused:?}");
    }
}

#[tokio::test]
async fn a_namespace_has_locks_of_its_own() {
    let backend = MemoryDriver::new();
    let [one, other] = ["one", "other"].map(|namespace| {
        let namespace = Namespace::new(namespace).unwrap();
        Locker::builder(backend.clone()).namespace(namespace).build().unwrap()
    });
    let mut guards = Vec::new();
    for name in ["b", "c", "a"] {
        guards.push(one.lock(name).unwrap().acquire().await.unwrap());
    }
    guards.push(other.lock("a").unwrap().try_acquire().await.unwrap().unwrap());
    let names = async |locker: &Locker| -> Vec<String> {
        let held = locker.held().await.unwrap();
        held.iter().map(|status| status.name().to_string()).collect()
    };
    assert_eq!(names(&one).await, ["a", "b", "c"]);
    assert_eq!(names(&other).await, ["a"]);
}

#[tokio::test]
async fn it_warns_that_its_locks_end_with_the_process() {
    let findings = Locker::new(MemoryDriver::new()).diagnose().await.unwrap();
    let [durability] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((durability.grade(), durability.topic()), (Grade::Warning, "durability"));
    assert!(durability.advice().is_some());
}
