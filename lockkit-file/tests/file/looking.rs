use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkit_core::driver::{Attempt, Driver as _, ErrorKind, Inspect as _, Release};
use lockkit_core::{LockStatus, Namespace};
use lockkit_file::FileDriver;

use crate::support::{
    Fixture, broken, claim, failed, granted, name, refused, seen, token, told_by_driver,
};

#[tokio::test]
async fn looking_at_what_was_never_used_makes_nothing() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    assert_eq!(driver.look(&name("a")).await.unwrap(), LockStatus::free(name("a")));
    assert_eq!(driver.held(&Namespace::default()).await.unwrap(), []);
    assert_eq!(broken(&driver, "a", None).await, None);
    driver.diagnose(&Namespace::default()).await.unwrap();
    assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), 0);
}

/// A lock whose holder died is the one that can be told from a held one only by trying it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_looks_refuse_no_try_of_a_lock_whose_holder_died() {
    const LOOKS: usize = 10_000;
    let fixture = Fixture::new();
    let looks = Arc::new(AtomicUsize::new(0));
    let mut looking = Vec::new();
    for _ in 0..4 {
        let (driver, looks) = (fixture.driver().await, Arc::clone(&looks));
        looking.push(tokio::spawn(async move {
            while looks.fetch_add(1, Ordering::SeqCst) < LOOKS {
                driver.look(&name("a")).await.unwrap();
            }
        }));
    }
    let (mut rounds, mut last) = (0, 0);
    while rounds < 500 || looks.load(Ordering::SeqCst) < LOOKS {
        // Closed, it leaves its record as if it had died.
        let driver = fixture.driver().await;
        let token = token(&driver, &claim("a")).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        driver.close().await;
        rounds += 1;
    }
    for task in looking {
        task.await.unwrap();
    }
}

/// As somebody who looks at it and is stopped at that.
#[tokio::test]
async fn a_lock_that_somebody_looks_at_for_long_is_not_said_to_be_held() {
    let fixture = Fixture::new();
    let driver = fixture.driver_with("call_limit=1s").await;
    let held = claim("a");
    granted(&driver, &held).await;
    driver.release(&held).await.unwrap();
    let looking = fs::File::open(fixture.file("a")).unwrap();
    looking.lock_shared().unwrap();
    let (kind, told) = failed(&driver, &claim("a")).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{told}");
    assert!(told.contains("not held, but somebody is looking at it"), "{told}");
    looking.unlock().unwrap();
    granted(&driver, &claim("a")).await;
}

/// There are more of them than a driver uses threads.
#[tokio::test]
async fn who_waits_for_a_look_to_end_leaves_the_threads_to_other_locks() {
    const ASKING: usize = 200;
    let fixture = Fixture::new();
    let driver = Arc::new(fixture.driver().await);
    let [wanted, other] = [claim("wanted"), claim("other")];
    granted(&driver, &wanted).await;
    driver.release(&wanted).await.unwrap();
    let looking = fs::File::open(fixture.file("wanted")).unwrap();
    looking.lock_shared().unwrap();
    let ask = |driver: Arc<FileDriver>| async move { driver.try_acquire(&claim("wanted")).await };
    let asking: Vec<_> = (0..ASKING).map(|_| tokio::spawn(ask(Arc::clone(&driver)))).collect();
    // They come first.
    tokio::task::yield_now().await;
    granted(&driver, &other).await;
    assert_eq!(driver.release(&other).await.unwrap(), Release::Freed);
    assert!(asking.iter().all(|asked| !asked.is_finished()));
    looking.unlock().unwrap();
    let mut grants = 0;
    for asked in asking {
        let attempt = asked.await.unwrap().unwrap();
        grants += usize::from(matches!(attempt, Attempt::Granted(_)));
    }
    assert_eq!(grants, 1);
}

#[tokio::test]
async fn who_inherited_the_lock_is_seen_and_can_be_broken() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    let heir = driver.descriptor(&held).await.unwrap().unwrap();
    driver.release(&held).await.unwrap();
    refused(&driver, &claim("a")).await;
    assert_eq!(seen(&driver, "a").await.unwrap().owner(), held.owner());
    assert_eq!(broken(&driver, "a", None).await.unwrap().owner(), held.owner());
    granted(&driver, &claim("a")).await;
    drop(heir);
    refused(&driver, &claim("a")).await;
}

#[tokio::test]
async fn the_list_passes_over_what_is_no_lock_file() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let [held, released] = [claim("held"), claim("released")];
    granted(&driver, &held).await;
    granted(&driver, &released).await;
    driver.release(&released).await.unwrap();
    fs::write(fixture.file("diary"), "Dear diary,").unwrap();
    fs::create_dir(fixture.file("folder")).unwrap();
    symlink("held", fixture.file("link")).unwrap();
    fs::hard_link(fixture.file("held"), fixture.file("twin")).unwrap();
    fs::copy(fixture.file("held"), fixture.file(".held")).unwrap();
    fs::write(fixture.file("empty"), "").unwrap();
    let list = driver.held(&Namespace::default()).await.unwrap();
    let names: Vec<_> = list.iter().map(|status| status.name().as_str()).collect();
    assert_eq!(names, ["held"]);
    for (file, kind) in [("diary", ErrorKind::Foreign), ("twin", ErrorKind::Foreign)] {
        let error = driver.look(&name(file)).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        let told = told_by_driver(error);
        assert!(told.contains(&format!("lockkit/{file}: ")), "{told}");
    }
}

#[tokio::test]
async fn a_folder_that_is_gone_cannot_be_looked_at() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    fs::remove_dir(fixture.path()).unwrap();
    let misconfigured = ErrorKind::Misconfigured;
    assert_eq!(driver.look(&name("a")).await.unwrap_err().kind(), misconfigured);
    assert_eq!(driver.held(&Namespace::default()).await.unwrap_err().kind(), misconfigured);
    assert_eq!(driver.break_hold(&name("a"), None).await.unwrap_err().kind(), misconfigured);
    fs::create_dir(fixture.path()).unwrap();
}
