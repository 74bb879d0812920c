//! A folder of locks, and what the tests ask of it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver as _, DriverError, Grant, Inspect, OwnerId};
use lockkit_core::{Holder, LockName, Namespace};
use lockkit_file::FileDriver;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// A guard against hanging, not a limit.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) struct Fixture {
    folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A driver of its own, for a disk that others keep busy.
    pub(crate) async fn driver(&self) -> FileDriver {
        self.driver_with("call_limit=30s").await
    }

    pub(crate) async fn driver_with(&self, parameters: &str) -> FileDriver {
        let url = format!("file:{}?{parameters}", self.path().display());
        FileDriver::connect(&url.parse().unwrap()).await.unwrap()
    }

    /// Where the file of a lock is.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join("lockkit").join(name)
    }
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(&Namespace::default(), text).unwrap()
}

/// A claim that does not wait.
pub(crate) fn claim(text: &str) -> Claim {
    Claim::new(name(text), HANG)
}

pub(crate) async fn granted(driver: &FileDriver, claim: &Claim) -> Grant {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        refused => panic!("refused: {refused:?}"),
    }
}

/// The token of a grant.
pub(crate) async fn token(driver: &FileDriver, claim: &Claim) -> u64 {
    granted(driver, claim).await.fencing_token().unwrap().get()
}

/// Writes a lock file whose last token is this one.
pub(crate) async fn forge(fixture: &Fixture, token: u64) {
    let driver = fixture.driver().await;
    let held = claim("a");
    let now = self::token(&driver, &held).await;
    driver.release(&held).await.unwrap();
    let content = std::fs::read(fixture.file("a")).unwrap();
    let forged = forged(&content, &format!("token {now}"), &format!("token {token}"));
    std::fs::write(fixture.file("a"), forged).unwrap();
}

/// The first record of some content with another text in place of `old`.
pub(crate) fn forged(content: &[u8], old: &str, new: &str) -> String {
    let content = std::str::from_utf8(content).unwrap();
    let text = content.split("\nsha256 ").next().unwrap();
    assert!(text.contains(old), "{text}");
    let text = text.replace(old, new);
    let sum = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{text}\nsha256 {sum}\n")
}

pub(crate) async fn refused(driver: &FileDriver, claim: &Claim) {
    let answer = driver.try_acquire(claim).await.unwrap();
    assert!(matches!(answer, Attempt::Taken(_)), "{answer:?}");
}

pub(crate) async fn seen(driver: &FileDriver, text: &str) -> Option<Holder> {
    driver.look(&name(text)).await.unwrap().holder().cloned()
}

pub(crate) async fn broken(
    driver: &FileDriver,
    text: &str,
    owner: Option<OwnerId>,
) -> Option<Holder> {
    driver.break_hold(&name(text), owner).await.unwrap()
}

/// Why an ask fails, with all that is said about it.
pub(crate) async fn failed(driver: &FileDriver, claim: &Claim) -> (Kind, String) {
    let error = driver.try_acquire(claim).await.unwrap_err();
    (error.kind(), told_by_driver(error))
}

pub(crate) type Kind = lockkit_core::driver::ErrorKind;

pub(crate) fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// An error with its sources, as a user sees it.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// What went wrong in a driver, with its sources.
pub(crate) fn told_by_driver(error: DriverError) -> String {
    told(&*error.into_source())
}
