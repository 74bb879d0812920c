use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Driver as _, ErrorKind, Release, Renewal};
use lockkit_core::{Error, Lease, Locker};
use tokio::time::timeout;

use crate::support::{Fixture, HANG, claim, granted, refused, token};

/// Puts a copy in place of the file, as a restored backup.
fn replace(file: &Path) {
    let copy = file.with_file_name(".copy");
    fs::copy(file, &copy).unwrap();
    fs::rename(copy, file).unwrap();
}

#[tokio::test]
async fn a_hold_in_a_file_that_was_replaced_is_lost() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let [held, next, third] = [claim("a"), claim("a"), claim("a")];
    let first = token(&driver, &held).await;
    replace(&fixture.file("a"));
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    let second = token(&other, &next).await;
    assert!(second > first, "{second} after {first}");

    // The late release of the one that lost it touches nothing of the other's.
    let before = fs::read(fixture.file("a")).unwrap();
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    assert_eq!(fs::read(fixture.file("a")).unwrap(), before);
    refused(&driver, &third).await;
    assert_eq!(other.release(&next).await.unwrap(), Release::Freed);
    let last = token(&driver, &third).await;
    assert!(last > second, "{last} after {second}");
}

#[tokio::test]
async fn a_hold_in_a_file_that_was_removed_is_lost() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let removals: [fn(&Path); 4] = [
        |file| fs::remove_file(file).unwrap(),
        |file| fs::remove_dir_all(file.parent().unwrap()).unwrap(),
        |file| fs::rename(file, file.with_file_name(".moved")).unwrap(),
        |file| {
            let namespace = file.parent().unwrap();
            fs::rename(namespace, namespace.with_file_name("moved")).unwrap();
        },
    ];
    let mut last = 0;
    for remove in removals {
        let held = claim("a");
        let token = token(&driver, &held).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        remove(&fixture.file("a"));
        assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
        assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    }
}

#[tokio::test]
async fn who_asks_again_after_the_file_was_replaced_gets_a_new_grant() {
    let fixture = Fixture::new();
    let (driver, held) = (fixture.driver().await, claim("a"));
    let first = token(&driver, &held).await;
    replace(&fixture.file("a"));
    let second = token(&driver, &held).await;
    assert!(second > first, "{second} after {first}");
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    refused(&driver, &claim("a")).await;
}

#[tokio::test]
async fn a_guard_learns_that_its_file_was_replaced_and_a_waiter_gets_the_new_one() {
    let fixture = Fixture::new();
    let lease = Lease::new(Duration::from_secs(1));
    let locker = async || Locker::builder(fixture.driver().await).lease(lease).build().unwrap();
    let holder = locker().await.lock("a").unwrap().acquire().await.unwrap();
    let waiter = locker().await.lock("a").unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    replace(&fixture.file("a"));
    let next = timeout(HANG, waiting).await.unwrap().unwrap().unwrap();
    timeout(HANG, holder.lost()).await.unwrap();
    assert!(next.fencing_token() > holder.fencing_token());
    assert!(matches!(holder.release().await, Err(Error::Lost { .. })));
    next.release().await.unwrap();
}

/// Whoever replaces the file reads the tokens of the old one after that, as breaking a hold does.
/// Nobody may have been granted a token there that is not among them.
#[tokio::test(flavor = "multi_thread")]
async fn no_grant_escapes_who_replaces_the_file() {
    let fixture = Fixture::new();
    let file = fixture.file("a");
    granted(&fixture.driver().await, &claim("a")).await;
    let (done, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let taking = tokio::spawn({
        let (done, granted) = (Arc::clone(&done), Arc::clone(&granted));
        let driver = fixture.driver().await;
        async move {
            while !done.load(Ordering::SeqCst) {
                let claim = claim("a");
                match driver.try_acquire(&claim).await {
                    Ok(Attempt::Granted(grant)) => {
                        granted.lock().unwrap().push(grant.fencing_token().unwrap().get());
                    }
                    // Replaced over and over.
                    answer => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unreachable),
                }
                driver.release(&claim).await.unwrap();
            }
        }
    });
    let highest = |path: &Path| {
        let content = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let tokens = content.lines().filter_map(|line| line.strip_prefix("token "));
        tokens.map(|token| token.parse::<u64>().unwrap()).max().unwrap_or(0)
    };
    let (old, new) = (file.with_file_name(".old"), file.with_file_name(".new"));
    let mut known = 0;
    for _ in 0..200 {
        let _ = fs::remove_file(&old);
        fs::hard_link(&file, &old).unwrap();
        fs::File::create(&new).unwrap();
        fs::rename(&new, &file).unwrap();
        // Granted so far, in the old file or already in the new one.
        let before = granted.lock().unwrap().last().copied().unwrap_or(0);
        known = known.max(highest(&old)).max(highest(&file));
        assert!(before <= known, "{before} was granted, and the files know of {known}");
        let next = async {
            while granted.lock().unwrap().last().copied().unwrap_or(0) == before {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        };
        timeout(HANG, next).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    taking.await.unwrap();
    let granted = granted.lock().unwrap();
    assert!(granted.len() > 50 && granted.is_sorted(), "{} grants", granted.len());
}
