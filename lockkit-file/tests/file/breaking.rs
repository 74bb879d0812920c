use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lockkit_core::driver::{Attempt, Driver as _, ErrorKind, Inspect as _, Release, Renewal};
use lockkit_file::FileDriver;
use tokio::time::timeout;

use crate::support::{
    Fixture, HANG, broken, claim, failed, forge, granted, mode, name, refused, seen, set_mode,
    token, told_by_driver,
};

#[tokio::test]
async fn who_was_broken_touches_nothing_of_who_came_after() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let [held, next] = [claim("a"), claim("a")];
    granted(&driver, &held).await;
    assert_eq!(broken(&other, "a", Some(held.owner())).await.unwrap().owner(), held.owner());
    granted(&other, &next).await;
    let before = fs::read(fixture.file("a")).unwrap();
    assert_eq!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&held).await.unwrap(), Release::NotHeld);
    assert_eq!(fs::read(fixture.file("a")).unwrap(), before);
    refused(&driver, &claim("a")).await;
    assert_eq!(other.release(&next).await.unwrap(), Release::Freed);
    let files = fs::read_dir(fixture.path().join("lockkit")).unwrap();
    assert_eq!(files.count(), 1, "a break leaves no other files");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_break_a_hold_one_has_broken_it() {
    let fixture = Fixture::new();
    let holder = fixture.driver().await;
    let mut breakers = Vec::new();
    for _ in 0..8 {
        breakers.push(Arc::new(fixture.driver().await));
    }
    let mut last = 0;
    for round in 0..50 {
        let held = claim("a");
        let token = token(&holder, &held).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        let owner = (round % 2 == 0).then_some(held.owner());
        let breaking = breakers.iter().map(|driver| {
            let driver = Arc::clone(driver);
            tokio::spawn(async move { broken(&driver, "a", owner).await })
        });
        let mut count = 0;
        for breaking in breaking.collect::<Vec<_>>() {
            if let Some(there) = breaking.await.unwrap() {
                assert_eq!(there.owner(), held.owner());
                count += 1;
            }
        }
        assert_eq!(count, 1, "in round {round}");
        assert_eq!(holder.renew(&held).await.unwrap(), Renewal::Lost);
        assert_eq!(holder.release(&held).await.unwrap(), Release::NotHeld);
    }
}

const ROUNDS: u32 = 320;

/// The lock goes from one to the other while the hold of the first is being broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_break_for_an_owner_never_ends_the_hold_of_its_successor() {
    let fixture = Fixture::new();
    let [holder, next, outside] =
        [fixture.driver().await, fixture.driver().await, fixture.driver().await].map(Arc::new);
    let probe = claim("a");
    granted(&holder, &probe).await;
    let begun = Instant::now();
    broken(&outside, "a", None).await.unwrap();
    let usual = begun.elapsed();
    let (mut breaks, mut lets_go, mut both) = (0, 0, 0);
    for round in 0..ROUNDS {
        let (early, late) = (claim("a"), claim("a"));
        let first = token(&holder, &early).await;
        let (driver, owner) = (Arc::clone(&outside), early.owner());
        let breaking = tokio::spawn(async move { broken(&driver, "a", Some(owner)).await });
        let (driver, claim) = (Arc::clone(&next), late.clone());
        let taking = tokio::spawn(async move { soon(&driver, &claim).await });
        // At each moment of a break in turn.
        std::thread::sleep(usual * (round % 32) / 16);
        let is_freed = holder.release(&early).await.unwrap() == Release::Freed;
        let is_broken = breaking.await.unwrap().is_some();
        lets_go += u32::from(is_freed);
        breaks += u32::from(is_broken);
        both += u32::from(is_freed && is_broken);
        let second = taking.await.unwrap();
        assert!(second > first, "{second} after {first}");
        assert!(matches!(next.renew(&late).await.unwrap(), Renewal::Held(_)));
        assert_eq!(next.release(&late).await.unwrap(), Release::Freed);
    }
    assert!(breaks > 0 && lets_go > 0, "no race: {breaks} breaks, {lets_go} releases");
    // In the microseconds in which the one has looked and the other acts.
    assert!(both < ROUNDS / 10, "{both} holds were let go and broken as well");
}

/// The token of a grant, as soon as the lock is free.
async fn soon(driver: &FileDriver, claim: &lockkit_core::driver::Claim) -> u64 {
    let asking = async {
        loop {
            match driver.try_acquire(claim).await.unwrap() {
                Attempt::Granted(grant) => return grant.fencing_token().unwrap().get(),
                _ => tokio::task::yield_now().await,
            }
        }
    };
    timeout(HANG, asking).await.unwrap()
}

/// The clock does not help: the tokens are far ahead of it. A grant that a break has missed would
/// be given again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_token_is_given_twice_while_holds_are_broken() {
    let fixture = Fixture::new();
    let ahead = i64::MAX as u64 / 2;
    forge(&fixture, ahead).await;
    let (done, tokens) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashSet::new())));
    let mut taking = Vec::new();
    for _ in 0..3 {
        let driver = fixture.driver().await;
        let (done, tokens) = (Arc::clone(&done), Arc::clone(&tokens));
        taking.push(tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let claim = claim("a");
                match driver.try_acquire(&claim).await {
                    Ok(Attempt::Granted(grant)) => {
                        let token = grant.fencing_token().unwrap().get();
                        assert!(token > ahead, "{token}: the tokens have fallen back");
                        assert!(tokens.lock().unwrap().insert(token), "{token} is given twice");
                        tokio::task::yield_now().await;
                    }
                    Ok(_) => tokio::task::yield_now().await,
                    // Broken over and over.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable),
                }
                driver.release(&claim).await.unwrap();
            }
        }));
    }
    let outside = fixture.driver().await;
    let breaking = async {
        for _ in 0..300 {
            let grants = || tokens.lock().unwrap().len();
            let before = grants();
            broken(&outside, "a", None).await;
            while grants() == before {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(HANG, breaking).await.unwrap();
    done.store(true, Ordering::SeqCst);
    for task in taking {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn what_a_breaker_that_died_has_left_disturbs_nobody() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    for content in ["", "lockkit-file 1\nstate free\n"] {
        fs::write(fixture.file(".a"), content).unwrap();
        driver.release(&held).await.unwrap();
        let before = token(&driver, &held).await;
        assert!(fixture.file(".a").exists());
        assert!(broken(&driver, "a", None).await.is_some());
        assert!(!fixture.file(".a").exists());
        let after = token(&driver, &held).await;
        assert!(after > before, "{after} after {before}");
    }
}

/// It has begun, and does not come to an end.
#[tokio::test]
async fn a_breaker_that_is_stopped_is_told_of() {
    let fixture = Fixture::new();
    let driver = fixture.driver_with("call_limit=1s").await;
    let held = claim("a");
    granted(&driver, &held).await;
    let mark = fs::File::create(fixture.file(".a")).unwrap();
    mark.lock_shared().unwrap();
    let error = driver.break_hold(&name("a"), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let told = told_by_driver(error);
    assert!(told.contains("somebody else is breaking"), "{told}");
    // The holder is not concerned, nor is who looks.
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
    assert_eq!(seen(&driver, "a").await.unwrap().owner(), held.owner());
    refused(&driver, &claim("a")).await;
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    let (kind, told) = failed(&driver, &claim("a")).await;
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(told.contains("somebody is breaking a hold of it"), "{told}");
    // It died.
    drop(mark);
    granted(&driver, &claim("a")).await;
    assert!(broken(&driver, "a", None).await.is_some());
}

/// It was taking the lock or letting go: it has the kernel's lock, and no record says so.
#[tokio::test]
async fn what_a_stopped_process_keeps_without_a_hold_is_broken() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let last = claim("used");
    let before = token(&driver, &last).await;
    driver.release(&last).await.unwrap();
    fs::write(fixture.file("new"), "").unwrap();
    for (text, of) in [("used", Some(last.owner())), ("new", None)] {
        let stopped = fs::File::open(fixture.file(text)).unwrap();
        stopped.try_lock().unwrap();
        refused(&driver, &claim(text)).await;
        // It has no owner.
        assert_eq!(broken(&driver, text, Some(last.owner())).await, None);
        refused(&driver, &claim(text)).await;
        let told = broken(&driver, text, None).await;
        assert_eq!(told.map(|holder| holder.owner()), of);
        let next = claim(text);
        let after = token(&driver, &next).await;
        assert!(after > before, "{after} after {before}");
        assert!(matches!(driver.renew(&next).await.unwrap(), Renewal::Held(_)));
        assert!(!fixture.file(&format!(".{text}")).exists());
        drop(stopped);
        refused(&driver, &claim(text)).await;
    }
}

#[tokio::test]
async fn the_new_file_is_for_those_who_could_use_the_old_one() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    for (folder, expected) in [(0o755, 0o600), (0o770, 0o660)] {
        set_mode(fixture.path(), folder);
        let held = claim(&format!("in-{folder:o}"));
        granted(&driver, &held).await;
        let file = fixture.file(held.name().as_str());
        let rights = fs::metadata(&file).unwrap();
        let (mut user, mut group) = (rights.uid(), rights.gid());
        if rustix::process::geteuid().is_root() {
            (user, group) = (4711, 4712);
            chown(&file, Some(user), Some(group)).unwrap();
        }
        set_mode(&file, expected);
        assert!(broken(&driver, held.name().as_str(), None).await.is_some());
        let rights = fs::metadata(&file).unwrap();
        assert_eq!((rights.uid(), rights.gid()), (user, group));
        assert_eq!(mode(&file), expected);
    }
}

#[tokio::test]
async fn a_break_of_the_file_of_another_lock_is_refused() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    fs::hard_link(fixture.file("a"), fixture.file("b")).unwrap();
    let error = driver.break_hold(&name("b"), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    let told = told_by_driver(error);
    assert!(told.contains("the file of another lock, \"a\""), "{told}");
    assert!(matches!(driver.renew(&held).await.unwrap(), Renewal::Held(_)));
}
