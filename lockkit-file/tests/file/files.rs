//! What may be found where a lock file should be.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};

use lockkit_core::driver::{Driver as _, ErrorKind, Release};
use lockkit_core::{LockName, Namespace};

use crate::support::{Fixture, claim, failed, forge, granted, name, refused, token};

const SLOT: usize = 4096;

/// The newer of the two records is torn at each byte, and the next grant still has a higher token
/// than any before.
#[tokio::test]
async fn a_file_torn_at_any_byte_gives_no_token_twice() {
    let fixture = Fixture::new();
    let (driver, file) = (fixture.driver().await, fixture.file("a"));
    // So that no token follows the clock.
    forge(&fixture, 4_102_444_800_000_000).await;
    let mut last = 0;
    for _ in 0..2 {
        let held = claim("a");
        last = token(&driver, &held).await;
        driver.release(&held).await.unwrap();
    }
    // A grant that was never made: it is torn at some byte.
    let sound = fs::read(&file).unwrap();
    let held = claim("a");
    token(&driver, &held).await;
    let written = fs::read(&file).unwrap();
    driver.release(&held).await.unwrap();
    let new = if sound[..SLOT] == written[..SLOT] { SLOT } else { 0 };
    let length = written[new..].iter().position(|byte| *byte == 0).unwrap();
    for at in 0..length {
        let mut torn = sound.clone();
        torn[new..new + at].copy_from_slice(&written[new..new + at]);
        torn[new + at] ^= 0x10;
        fs::write(&file, torn).unwrap();
        let held = claim("a");
        let token = token(&driver, &held).await;
        assert!(token > last, "{token} after {last}, torn at byte {at}");
        assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    }
}

/// The kernel stops, and what was not synced is lost: of many grants only the first was.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_a_stopped_kernel_had_not_written_is_not_granted_again() {
    let fixture = Fixture::new();
    let (driver, file) = (fixture.driver().await, fixture.file("a"));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // So that no token follows the clock.
    forge(&fixture, 4_102_444_800_000_000).await;
    let held = claim("a");
    let first = token(&driver, &held).await;
    let synced = fs::read(&file).unwrap();
    driver.release(&held).await.unwrap();
    let mut last = first;
    for _ in 0..100 {
        let held = claim("a");
        last = token(&driver, &held).await;
        driver.release(&held).await.unwrap();
    }
    assert_eq!(last, first + 100, "none of them was skipped");
    // The other slot is from before, or was being written.
    for lost in [&synced[..SLOT], &[b'x'; SLOT]] {
        let mut disk = lost.to_vec();
        let other_boot = "00000000-0000-0000-0000-000000000000";
        disk.extend(crate::support::forged(&synced[SLOT..], boot.trim_end(), other_boot).bytes());
        fs::write(&file, disk).unwrap();
        let held = claim("a");
        let next = token(&driver, &held).await;
        assert!(next > last, "{next} after {last}");
        driver.release(&held).await.unwrap();
    }
}

/// Tokens do not hang on the clock.
#[tokio::test]
async fn tokens_rise_from_what_the_file_says_though_the_clock_is_behind() {
    let fixture = Fixture::new();
    let (driver, file) = (fixture.driver().await, fixture.file("a"));
    let ahead = i64::MAX as u64 - 3;
    forge(&fixture, ahead).await;
    for expected in ahead + 1..=i64::MAX as u64 {
        let held = claim("a");
        assert_eq!(token(&driver, &held).await, expected);
        driver.release(&held).await.unwrap();
    }
    let before = fs::read(&file).unwrap();
    let (kind, told) = failed(&driver, &claim("a")).await;
    assert_eq!(kind, ErrorKind::Capacity);
    assert!(told.contains("tokens of this lock are used up"), "{told}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn what_is_no_lock_file_is_refused_and_not_touched() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("somewhere")).await;
    for content in ["4711\n", "Dear diary, today I locked nothing at all."] {
        fs::write(fixture.file("a"), content).unwrap();
        let (kind, told) = failed(&driver, &claim("a")).await;
        assert_eq!(kind, ErrorKind::Foreign, "{told}");
        assert!(told.contains("lockkit/a: it is no lock file"), "{told}");
        assert_eq!(fs::read_to_string(fixture.file("a")).unwrap(), content);
    }
    // An empty one harms nobody.
    fs::write(fixture.file("a"), "").unwrap();
    granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn a_link_to_another_file_is_refused_and_not_followed() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("somewhere")).await;
    let (precious, missing) = (fixture.path().join("precious"), fixture.path().join("missing"));
    fs::write(&precious, "").unwrap();
    for target in [&precious, &missing] {
        symlink(target, fixture.file("a")).unwrap();
        let (kind, told) = failed(&driver, &claim("a")).await;
        assert!(matches!(kind, ErrorKind::Foreign), "{kind:?}: {told}");
        fs::remove_file(fixture.file("a")).unwrap();
    }
    assert_eq!(fs::read(&precious).unwrap(), b"");
    assert!(!missing.exists());
}

#[tokio::test]
async fn what_is_not_a_file_is_refused() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    granted(&driver, &claim("somewhere")).await;
    fs::create_dir(fixture.file("folder")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(fixture.file("pipe")).status().unwrap();
    assert!(pipe.success());
    assert!(fs::metadata(fixture.file("pipe")).unwrap().file_type().is_fifo());
    for file in ["folder", "pipe"] {
        let (kind, told) = failed(&driver, &claim(file)).await;
        assert_eq!(kind, ErrorKind::Foreign, "{file}: {told}");
    }
}

/// Two names never exclude each other, so they cannot share a file.
#[tokio::test]
async fn the_file_of_another_lock_is_refused() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    driver.release(&held).await.unwrap();
    fs::hard_link(fixture.file("a"), fixture.file("b")).unwrap();
    let (kind, told) = failed(&driver, &claim("b")).await;
    assert_eq!(kind, ErrorKind::Foreign);
    assert!(told.contains("the file of another lock, \"a\""), "{told}");
    granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn awkward_names_stay_in_their_folder() {
    let fixture = Fixture::new();
    let (driver, other) = (fixture.driver().await, fixture.driver().await);
    let long = "x".repeat(512);
    let names =
        [".", "..", "../x", "/etc/passwd", "a/b", "A", "a", "CON", ".new", "~", "ä\u{301}", &long];
    let mut expected = Vec::new();
    for text in names {
        granted(&driver, &claim(text)).await;
        refused(&other, &claim(text)).await;
        expected.push(name(text).segment(200));
    }
    let files = fs::read_dir(fixture.path().join("lockkit")).unwrap();
    let mut files: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
    let folders: Vec<_> = fs::read_dir(fixture.path()).unwrap().collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
}

#[tokio::test]
async fn awkward_namespaces_stay_in_their_folder() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let namespaces = [".", "..", "a", "A", "lockkit", &"Z".repeat(64)].map(Namespace::new);
    for namespace in &namespaces {
        let name = LockName::new(namespace.as_ref().unwrap(), "a").unwrap();
        let claim = lockkit_core::driver::Claim::new(name, crate::support::HANG);
        granted(&driver, &claim).await;
    }
    let folders: Vec<_> = fs::read_dir(fixture.path()).unwrap().collect();
    assert_eq!(folders.len(), namespaces.len(), "{folders:?}");
}
