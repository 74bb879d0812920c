//! A database in a folder of its own, and what the tests ask of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit_core::driver::{
    Attempt, Change, Claim, Driver as _, DriverError, ErrorKind, Grant, Release, Renewal, Taken,
};
use lockkit_core::{LockName, Namespace};
use lockkit_sql::sqlite::SqliteDriver;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, SqlSafeStr};
use tempfile::TempDir;

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A guard against hanging, not a limit.
pub(crate) const HANG: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("locks.db")
    }

    /// A new connection.
    pub(crate) async fn driver(&self) -> SqliteDriver {
        SqliteDriver::open(self.path()).await.unwrap()
    }

    /// The database as SQLite sees it, without a driver.
    pub(crate) async fn raw(&self) -> SqliteConnection {
        raw(&self.path()).await
    }
}

pub(crate) async fn raw(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    options.busy_timeout(HANG).connect().await.unwrap()
}

/// Runs statements and returns how many rows they changed.
pub(crate) async fn execute(connection: &mut SqliteConnection, sql: impl SqlSafeStr) -> u64 {
    sqlx::raw_sql(sql).execute(connection).await.unwrap().rows_affected()
}

/// Asks for one number.
pub(crate) async fn number(connection: &mut SqliteConnection, sql: impl SqlSafeStr) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(&Namespace::default(), text).unwrap()
}

/// A claim that does not wait.
pub(crate) fn claim(text: &str) -> Claim {
    Claim::new(name(text), LONG)
}

pub(crate) async fn granted(driver: &SqliteDriver, claim: &Claim) -> Grant {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        refused => panic!("refused: {refused:?}"),
    }
}

pub(crate) async fn refused(driver: &SqliteDriver, claim: &Claim) -> Taken {
    match driver.try_acquire(claim).await.unwrap() {
        Attempt::Taken(taken) => taken,
        granted => panic!("granted: {granted:?}"),
    }
}

/// The token of a grant.
pub(crate) async fn token(driver: &SqliteDriver, claim: &Claim) -> u64 {
    granted(driver, claim).await.fencing_token().unwrap().get()
}

/// Whether there is news for a claim already.
pub(crate) async fn has_news(driver: &SqliteDriver, claim: &Claim) -> bool {
    tokio::select! {
        biased;
        change = driver.changed(claim) => {
            assert_eq!(change, Change::AskAgain);
            true
        }
        () = std::future::ready(()) => false,
    }
}

/// An error with its sources, as a user sees it.
pub(crate) fn told(error: impl std::error::Error) -> String {
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
    let source = error.into_source();
    told(&*source)
}

/// Nothing is granted in its file any more, and what was is lost.
pub(crate) async fn binds_nobody(driver: &SqliteDriver, held: &Claim) {
    let error = driver.try_acquire(&claim("wanted")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(told_by_driver(error).contains("deleted or replaced"));
    assert_eq!(driver.renew(held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(held).await.unwrap(), Release::NotHeld);
}
