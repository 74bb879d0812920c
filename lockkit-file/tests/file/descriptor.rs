use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkit_core::Locker;
use lockkit_core::driver::{Attempt, Claim, Driver as _, Release, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_file::FileDriver;
use tokio::time::{sleep, timeout};

use crate::support::{Fixture, HANG, claim, granted, refused};

/// A process that does nothing for long.
struct Sleeper(Child);

impl Sleeper {
    fn start(input: impl Into<Stdio>) -> Self {
        Self(Command::new("sleep").arg("1000").stdin(input).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Unless it has ended.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A process that another test starts at this moment has a copy of each descriptor until its
/// `exec`.
pub(crate) async fn soon_granted(driver: &FileDriver, claim: &Claim) {
    let asking = async {
        while !matches!(driver.try_acquire(claim).await.unwrap(), Attempt::Granted(_)) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(HANG, asking).await.unwrap();
}

#[tokio::test]
async fn a_descriptor_keeps_the_lock_until_its_last_copy_is_closed() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let (held, next) = (claim("a"), claim("a"));
    granted(&driver, &held).await;
    let descriptor = driver.descriptor(&held).await.unwrap().unwrap();
    let copy = descriptor.try_clone().unwrap();
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));

    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    refused(&other, &next).await;
    drop(descriptor);
    refused(&other, &next).await;
    drop(copy);
    soon_granted(&other, &next).await;
}

/// As its standard input: how it comes by it is up to whoever starts it.
#[tokio::test]
async fn a_process_that_inherits_the_descriptor_keeps_the_lock() {
    let fixture = Fixture::new();
    let (driver, next) = (fixture.driver().await, claim("a"));
    let held = claim("a");
    granted(&driver, &held).await;
    let descriptor = driver.descriptor(&held).await.unwrap().unwrap();
    let heir = Sleeper::start(descriptor);
    driver.release(&held).await.unwrap();
    refused(&driver, &next).await;
    drop(heir);
    soon_granted(&driver, &next).await;
}

/// Other descriptors of a process are not handed on.
#[tokio::test]
async fn a_process_that_inherits_nothing_does_not_keep_the_lock() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    // From now on the lock is not unlocked, only closed.
    let descriptor = driver.descriptor(&held).await.unwrap();
    let _child = Sleeper::start(Stdio::null());
    drop(descriptor);
    driver.release(&held).await.unwrap();
    soon_granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn who_holds_nothing_has_no_descriptor() {
    let fixture = Fixture::new();
    let (driver, held, waiting) = (fixture.driver().await, claim("a"), claim("a").waiting());
    assert!(driver.descriptor(&held).await.unwrap().is_none());
    granted(&driver, &held).await;
    refused(&driver, &waiting).await;
    assert!(driver.descriptor(&waiting).await.unwrap().is_none());
    driver.release(&held).await.unwrap();
    assert!(driver.descriptor(&held).await.unwrap().is_none());
}

/// Closing one of several descriptors of a file ends locks of the other family, fcntl(2)'s.
#[tokio::test]
async fn opening_and_closing_the_file_elsewhere_changes_nothing() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    granted(&driver, &claim("a")).await;
    drop(File::open(fixture.file("a")).unwrap());
    refused(&other, &claim("a")).await;
}

#[tokio::test]
async fn a_guard_hands_out_what_keeps_its_lock() {
    let fixture = Fixture::new();
    let lock = |driver| Locker::new(driver).lock("a").unwrap();
    let (lock, others) = (lock(fixture.driver().await), lock(fixture.driver().await));
    let guard = lock.acquire().await.unwrap();
    let descriptor = guard.descriptor().await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(others.try_acquire().await.unwrap().is_none());
    drop(descriptor);
    timeout(HANG, others.acquire()).await.unwrap().unwrap().release().await.unwrap();

    let leased = Locker::new(MemoryDriver::new()).lock("a").unwrap().acquire().await.unwrap();
    assert!(leased.descriptor().await.unwrap().is_none(), "a lease is kept by no descriptor");
}
