//! Several real processes: this test binary, started again.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Driver as _, ErrorKind, Inspect as _, Release, Renewal};
use lockkit_core::{Error, Label, LockStatus, Locker};
use lockkit_sql::sqlite::SqliteDriver;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Fixture, binds_nobody, claim, granted, told_by_driver};

const CHILD: &str = "LOCKKIT_TEST_SQLITE_CHILD";
const PROCESSES: usize = 10;
const ROUNDS: usize = 20;

/// Ten processes create the database together, and each adds to a plain file under the lock.
#[test]
fn ten_processes_from_nothing_exclude_each_other() {
    let fixture = Fixture::new();
    let counter = fixture.folder().join("counter");
    std::fs::write(&counter, "0 0").unwrap();
    let children: Vec<_> =
        (0..PROCESSES).map(|_| start("processes::child", CHILD, &fixture.path())).collect();
    children.into_iter().for_each(ended_well);
    let (count, _) = read(&counter);
    assert_eq!(count, (PROCESSES * ROUNDS) as u64);
}

fn start(test: &str, variable: &str, database: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, database)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ended_well(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// One of the processes; does nothing when run as a test.
#[tokio::test]
async fn child() {
    let Some(database) = std::env::var_os(CHILD) else { return };
    let database = Path::new(&database);
    let counter = database.with_file_name("counter");
    let url = format!("sqlite:{}?call_limit=30s", database.display());
    let driver = SqliteDriver::connect(&url.parse().unwrap()).await.unwrap();
    for _ in 0..ROUNDS {
        let claim = claim("counter");
        let asking = async {
            loop {
                match driver.try_acquire(&claim).await.unwrap() {
                    Attempt::Granted(grant) => break grant.fencing_token().unwrap().get(),
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        // Not for ever, if another process has failed.
        let token = tokio::time::timeout(Duration::from_secs(60), asking).await.unwrap();
        let (count, last) = read(&counter);
        assert!(token > last, "token {token} after {last}");
        std::fs::write(&counter, format!("{} {token}", count + 1)).unwrap();
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
    driver.close().await;
}

const SUCCESSOR: &str = "LOCKKIT_TEST_SQLITE_SUCCESSOR";

/// The new file takes over the log of the old one, and what is asked in that fails.
#[tokio::test]
async fn holds_end_with_a_file_that_another_process_replaces() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("held");
    granted(&driver, &held).await;
    std::fs::remove_file(fixture.path()).unwrap();
    ended_well(start("processes::successor", SUCCESSOR, &fixture.path()));
    binds_nobody(&driver, &held).await;
}

/// Who makes the new file; does nothing when run as a test.
#[tokio::test]
async fn successor() {
    let Some(database) = std::env::var_os(SUCCESSOR) else { return };
    let driver = SqliteDriver::open(database).await.unwrap();
    granted(&driver, &claim("held")).await;
    driver.close().await;
}

const POOR: &str = "LOCKKIT_TEST_SQLITE_POOR";

/// Limits are for a whole process.
#[test]
fn a_process_without_descriptors_says_so() {
    let fixture = Fixture::new();
    ended_well(start("processes::poor", POOR, &fixture.path()));
}

/// The process; does nothing when run as a test.
#[tokio::test]
async fn poor() {
    let Some(database) = std::env::var_os(POOR) else { return };
    let driver = SqliteDriver::open(&database).await.unwrap();
    let held = claim("a");
    granted(&driver, &held).await;
    let before = getrlimit(Resource::Nofile);
    let allow_no_more = || {
        // The lowest number that is free.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd().try_into().unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
    };
    allow_no_more();
    let error = driver.look(held.name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    let told = told_by_driver(error);
    assert!(told.contains("open files"), "{told}");
    assert!(matches!(SqliteDriver::open(&database).await, Err(Error::Capacity(_))));
    // What is held needs no more.
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
    assert_eq!(driver.release(&held).await.unwrap(), Release::Freed);
    // The next request opens the database anew.
    driver.close().await;
    allow_no_more();
    assert_eq!(driver.try_acquire(&held).await.unwrap_err().kind(), ErrorKind::Capacity);
    setrlimit(Resource::Nofile, before).unwrap();
    granted(&driver, &held).await;
}

const HOLDER: &str = "LOCKKIT_TEST_SQLITE_HOLDER";

/// Two processes, one that holds and one that waits in order, looked at and broken from a third.
#[tokio::test]
async fn holders_and_waiters_of_other_processes_are_seen_and_broken() {
    let fixture = Fixture::new();
    let onlooker = Locker::new(fixture.driver().await);
    let holds = |pid: u32| {
        move |status: &LockStatus| status.holder().is_some_and(|holder| is_of(holder.label(), pid))
    };
    let first = start("processes::holder", HOLDER, &fixture.path());
    wait_until(&onlooker, holds(first.id())).await;
    let second = start("processes::holder", HOLDER, &fixture.path());
    wait_until(&onlooker, |status| {
        status.waiters().iter().any(|waiter| is_of(waiter.label(), second.id()))
    })
    .await;
    // The one that waits finds out by itself, and each that was broken ends.
    for (broken, next) in [(first, Some(second.id())), (second, None)] {
        let holder = onlooker.break_hold("a", None).await.unwrap().unwrap();
        assert!(is_of(holder.label(), broken.id()), "{holder:?}");
        ended_well(broken);
        if let Some(next) = next {
            wait_until(&onlooker, holds(next)).await;
        }
    }
}

fn is_of(label: Option<&Label>, pid: u32) -> bool {
    label.is_some_and(|label| label.as_str().ends_with(&format!(":{pid}")))
}

async fn wait_until(onlooker: &Locker, is_so: impl Fn(&LockStatus) -> bool) {
    let looking = async {
        while !is_so(&onlooker.look("a").await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking).await.unwrap();
}

/// Holds until it is broken; does nothing when run as a test.
#[tokio::test]
async fn holder() {
    let Some(database) = std::env::var_os(HOLDER) else { return };
    let driver = SqliteDriver::open(&database).await.unwrap();
    let locker = Locker::builder(driver).ttl(Duration::from_secs(10)).build().unwrap();
    let holding = async {
        let guard = locker.lock("a").unwrap().fair().unwrap().acquire().await.unwrap();
        guard.lost().await;
    };
    tokio::time::timeout(Duration::from_secs(60), holding).await.unwrap();
}

fn read(counter: &Path) -> (u64, u64) {
    let text = std::fs::read_to_string(counter).unwrap();
    let (count, token) = text.split_once(' ').unwrap();
    (count.parse().unwrap(), token.parse().unwrap())
}
