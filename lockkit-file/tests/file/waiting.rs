//! What those who wait hear, by inotify.

use std::path::Path;
use std::time::Duration;

use lockkit_core::Namespace;
use lockkit_core::driver::{Attempt, Change, Claim, Driver as _, Inspect as _};
use lockkit_file::FileDriver;
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::descriptor::soon_granted;
use crate::processes::Process;
use crate::support::{Fixture, HANG, broken, claim, granted, mode, name, refused, set_mode};

fn waiting() -> Claim {
    claim("a").waiting()
}

async fn heard(driver: &FileDriver, claim: &Claim) -> Change {
    timeout(HANG, driver.changed(claim)).await.expect("no news")
}

#[tokio::test]
async fn a_release_is_heard_by_all_who_wait() {
    let fixture = Fixture::new();
    let (holder, held) = (fixture.driver().await, claim("a"));
    granted(&holder, &held).await;
    let (one, other) = (fixture.driver().await, fixture.driver().await);
    let claims = [(&one, waiting()), (&one, waiting()), (&other, waiting()), (&holder, waiting())];
    for (driver, claim) in &claims {
        let Attempt::Taken(taken) = driver.try_acquire(claim).await.unwrap() else {
            panic!("granted")
        };
        // It hears whatever comes, and polls at leisure.
        assert_eq!(taken.asks_within(), Some(Duration::from_millis(100)));
    }
    holder.release(&held).await.unwrap();
    for (driver, claim) in &claims {
        assert_eq!(heard(driver, claim).await, Change::Freed);
    }
    let [(driver, first), others @ ..] = &claims;
    granted(driver, first).await;
    // And again, after another refusal.
    for (driver, claim) in others {
        refused(driver, claim).await;
    }
    driver.release(first).await.unwrap();
    for (driver, claim) in others {
        assert_eq!(heard(driver, claim).await, Change::Freed);
    }
}

#[tokio::test]
async fn the_death_of_a_holder_is_heard() {
    let fixture = Fixture::new();
    let mut holder = Process::start("holds", fixture.path());
    holder.token();
    let (driver, waiting) = (fixture.driver().await, waiting());
    refused(&driver, &waiting).await;
    holder.signal(Signal::KILL);
    assert_eq!(heard(&driver, &waiting).await, Change::Freed);
}

#[tokio::test]
async fn the_end_of_a_program_that_inherited_the_lock_is_heard() {
    let fixture = Fixture::new();
    let (holder, held) = (fixture.driver().await, claim("a"));
    granted(&holder, &held).await;
    let inherited = holder.descriptor(&held).await.unwrap().unwrap();
    let (driver, waiting) = (fixture.driver().await, waiting());
    holder.release(&held).await.unwrap();
    refused(&driver, &waiting).await;
    drop(inherited);
    assert_eq!(heard(&driver, &waiting).await, Change::Freed);
    granted(&driver, &waiting).await;
}

#[tokio::test]
async fn a_release_is_heard_only_if_no_copy_of_the_descriptor_keeps_the_lock() {
    let fixture = Fixture::new();
    let (holder, driver) = (fixture.driver().await, fixture.driver().await);
    for is_kept in [true, false] {
        let (held, waiting) = (claim("a"), waiting());
        soon_granted(&holder, &held).await;
        let copy = holder.descriptor(&held).await.unwrap().unwrap();
        let kept = is_kept.then_some(copy);
        refused(&driver, &waiting).await;
        holder.release(&held).await.unwrap();
        if is_kept {
            // Told of differently than a release, so it was not that.
            set_mode(&fixture.file("a"), mode(&fixture.file("a")));
            assert_eq!(heard(&driver, &waiting).await, Change::AskAgain);
            refused(&driver, &waiting).await;
        }
        drop(kept);
        assert_eq!(heard(&driver, &waiting).await, Change::Freed);
        soon_granted(&driver, &waiting).await;
        driver.release(&waiting).await.unwrap();
    }
}

#[tokio::test]
async fn a_break_is_heard_and_the_new_file_listened_to() {
    let fixture = Fixture::new();
    let (holder, held) = (fixture.driver().await, claim("a"));
    granted(&holder, &held).await;
    let (driver, [first, second]) = (fixture.driver().await, [waiting(), waiting()]);
    refused(&driver, &first).await;
    refused(&driver, &second).await;
    assert!(broken(&fixture.driver().await, "a", None).await.is_some());
    for waiting in [&first, &second] {
        assert_eq!(heard(&driver, waiting).await, Change::AskAgain);
    }
    granted(&driver, &first).await;
    refused(&driver, &second).await;
    driver.release(&first).await.unwrap();
    assert_eq!(heard(&driver, &second).await, Change::Freed);
}

/// The first thing that is heard is what was done last, and only that is told.
#[tokio::test]
async fn asking_looking_and_renewing_wake_nobody() {
    let fixture = Fixture::new();
    let (holder, held) = (fixture.driver().await, claim("a"));
    granted(&holder, &held).await;
    let (driver, waiting, other) = (fixture.driver().await, waiting(), fixture.driver().await);
    let disturb = async || {
        refused(&driver, &waiting).await;
        let asking = self::waiting();
        for _ in 0..3 {
            refused(&other, &claim("a")).await;
            refused(&other, &asking).await;
        }
        other.release(&asking).await.unwrap();
        other.look(&name("a")).await.unwrap();
        other.held(&Namespace::default()).await.unwrap();
        other.diagnose(&Namespace::default()).await.unwrap();
        holder.renew(&held).await.unwrap();
        granted(&holder, &held).await;
    };
    disturb().await;
    // Told of differently than a release, so it was not that.
    set_mode(&fixture.file("a"), mode(&fixture.file("a")));
    assert_eq!(heard(&driver, &waiting).await, Change::AskAgain);
    disturb().await;
    holder.release(&held).await.unwrap();
    assert_eq!(heard(&driver, &waiting).await, Change::Freed);
}

/// Whether this process watches the file.
fn is_watched(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let number = std::fs::metadata(file).unwrap().ino();
    let watch = format!(" ino:{number:x} ");
    std::fs::read_dir("/proc/self/fdinfo").unwrap().any(|entry| {
        // It may be closed by now.
        let told = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        told.lines().any(|line| line.starts_with("inotify ") && line.contains(&watch))
    })
}

async fn is_watched_no_more(file: &Path) {
    let gone = async {
        while is_watched(file) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(HANG, gone).await.expect("the file is still watched");
}

#[tokio::test]
async fn a_file_is_watched_only_while_somebody_waits() {
    let fixture = Fixture::new();
    let (holder, held, file) = (fixture.driver().await, claim("a"), fixture.file("a"));
    granted(&holder, &held).await;
    let driver = fixture.driver().await;
    refused(&driver, &claim("a")).await;
    assert!(!is_watched(&file), "nobody waits");
    for _ in 0..2 {
        let waiting = waiting();
        refused(&driver, &waiting).await;
        assert!(is_watched(&file));
        driver.release(&waiting).await.unwrap();
        is_watched_no_more(&file).await;
    }
    refused(&driver, &waiting()).await;
    driver.close().await;
    is_watched_no_more(&file).await;
    refused(&driver, &waiting()).await;
    drop(driver);
    is_watched_no_more(&file).await;
}

/// The reading of news ends there before it begins.
#[test]
fn on_a_runtime_without_io_waiters_poll() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let fixture = Fixture::new();
        let (driver, held, waiting) = (fixture.driver().await, claim("a"), waiting());
        granted(&driver, &held).await;
        let is_unheard = async || match driver.try_acquire(&waiting).await.unwrap() {
            Attempt::Taken(taken) => taken.is_unheard(),
            granted => panic!("{granted:?}"),
        };
        // That nothing can be heard is found out while it asks, or after.
        if !is_unheard().await {
            assert_eq!(heard(&driver, &waiting).await, Change::AskAgain);
            assert!(is_unheard().await);
        }
        driver.release(&held).await.unwrap();
        granted(&driver, &waiting).await;
    });
}

#[test]
fn another_runtime_is_as_good() {
    let fixture = Fixture::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (driver, held) = (first.block_on(fixture.driver()), claim("a"));
    let early = waiting();
    first.block_on(async {
        granted(&driver, &held).await;
        refused(&driver, &early).await;
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(heard(&driver, &early).await, Change::AskAgain);
        refused(&driver, &early).await;
        driver.release(&held).await.unwrap();
        assert_eq!(heard(&driver, &early).await, Change::Freed);
    });
}
