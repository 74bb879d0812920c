//! Several real processes: this test binary, started again.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkit_core::driver::{Attempt, Claim, Driver as _, ErrorKind, Inspect as _};
use lockkit_core::{Error, Lease, LockName, Locker, Namespace};
use lockkit_file::FileDriver;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::time::timeout;

use crate::support::{Fixture, HANG, broken, claim, failed, granted, refused, seen, token};

/// Which folder a child is to use.
const FOLDER: &str = "LOCKKIT_TEST_FILE_FOLDER";
/// What it is to do there: the name of a function below.
const ROLE: &str = "LOCKKIT_TEST_FILE_ROLE";

const PROCESSES: usize = 8;
const ROUNDS: usize = 200;

pub(crate) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: &str, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child", "--nocapture"])
            .env(FOLDER, folder)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The token of the lock that it holds, once it does.
    pub(crate) fn token(&mut self) -> u64 {
        for line in self.output.by_ref().lines() {
            // The harness begins a line before it.
            if let Some((_, token)) = line.unwrap().split_once("holds under ") {
                return token.parse().unwrap();
            }
        }
        panic!("it ended without a hold");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn succeeds(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Unless it has ended.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// One of the processes; does nothing when run as a test.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let driver = FileDriver::open(&folder).await.unwrap();
    match std::env::var(ROLE).unwrap().as_str() {
        "counts" => counts(driver, Path::new(&folder)).await,
        "holds" => holds(driver).await,
        "is_broken" => is_broken(driver).await,
        "has_no_descriptors_left" => has_no_descriptors_left(driver).await,
        "has_many_namespaces" => has_many_namespaces(driver).await,
        other => panic!("unknown role {other}"),
    }
}

async fn counts(driver: FileDriver, folder: &Path) {
    let counter = folder.join("counter");
    let lock = Locker::new(driver).lock("counter").unwrap();
    for _ in 0..ROUNDS {
        // Not for ever, if another process has failed.
        let guard = timeout(HANG, lock.acquire()).await.unwrap().unwrap();
        let token = guard.fencing_token().unwrap().get();
        let (count, last) = read(&counter);
        assert!(token > last, "token {token} after {last}");
        std::fs::write(&counter, format!("{} {token}", count + 1)).unwrap();
        guard.release().await.unwrap();
    }
}

/// Until its input ends.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn holds(driver: FileDriver) {
    println!("holds under {}", token(&driver, &claim("a")).await);
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()).unwrap())
        .await
        .unwrap();
    // Without a release: nothing is tidied up.
    std::process::exit(0);
}

/// Learns that its hold was broken, with nobody's help.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn is_broken(driver: FileDriver) {
    let lease = Lease::new(Duration::from_secs(1));
    let lock = Locker::builder(driver).lease(lease).build().unwrap().lock("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    println!("holds under {}", guard.fencing_token().unwrap());
    timeout(HANG, guard.lost()).await.unwrap();
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

async fn has_no_descriptors_left(driver: FileDriver) {
    let held = claim("held");
    granted(&driver, &held).await;
    leave_no_descriptors();
    let (kind, told) = failed(&driver, &claim("wanted")).await;
    assert_eq!(kind, ErrorKind::Capacity, "{told}");
    assert!(told.contains("open files"), "{told}");
    let error = driver.descriptor(&held).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    // What is held needs no more.
    driver.renew(&held).await.unwrap();
    driver.release(&held).await.unwrap();
    granted(&driver, &claim("held")).await;
}

/// One for each of its users, say.
async fn has_many_namespaces(driver: FileDriver) {
    let open = || std::fs::read_dir("/dev/fd").unwrap().count();
    let visit = async |number: usize| {
        let namespace = Namespace::new(&format!("tenant-{number}")).unwrap();
        let visit = Claim::new(LockName::new(&namespace, "a").unwrap(), HANG);
        granted(&driver, &visit).await;
        driver.release(&visit).await.unwrap();
    };
    let before = open();
    for number in 0..200 {
        visit(number).await;
    }
    let more = open() - before;
    assert!((1..=16).contains(&more), "{more} are open");
    // Even these make room for a lock.
    leave_no_descriptors();
    for number in 200..240 {
        visit(number).await;
    }
}

/// Lets this process open no file until it closes one.
fn leave_no_descriptors() {
    // The lowest number that is free.
    let next = std::fs::File::open("/dev/null").unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&next).try_into().unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
}

fn read(counter: &Path) -> (u64, u64) {
    let text = std::fs::read_to_string(counter).unwrap();
    let (count, token) = text.split_once(' ').unwrap();
    (count.parse().unwrap(), token.parse().unwrap())
}

#[test]
fn eight_processes_from_nothing_count_to_1600() {
    let fixture = Fixture::new();
    let counter = fixture.path().join("counter");
    std::fs::write(&counter, "0 0").unwrap();
    let processes: Vec<_> =
        (0..PROCESSES).map(|_| Process::start("counts", fixture.path())).collect();
    processes.into_iter().for_each(Process::succeeds);
    assert_eq!(read(&counter).0, (PROCESSES * ROUNDS) as u64);
}

#[tokio::test]
async fn a_process_that_is_killed_frees_its_locks_at_once() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut last = 0;
    for _ in 0..5 {
        let mut holder = Process::start("holds", fixture.path());
        let killed = holder.token();
        refused(&driver, &claim("a")).await;
        holder.signal(Signal::KILL);
        holder.child.wait().unwrap();
        let next = claim("a");
        let token = token(&driver, &next).await;
        assert!(last < killed && killed < token, "{token} after {killed} after {last}");
        last = token;
        driver.release(&next).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_gets_the_lock_of_a_process_that_is_killed() {
    let fixture = Fixture::new();
    let mut holder = Process::start("holds", fixture.path());
    let killed = holder.token();
    let lock = Locker::new(fixture.driver().await).lock("a").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    holder.signal(Signal::KILL);
    let guard = timeout(HANG, waiting).await.unwrap().unwrap().unwrap();
    assert!(guard.fencing_token().unwrap().get() > killed);
    guard.release().await.unwrap();
}

/// However long it is stopped for, which is longer than any `ttl` here.
#[tokio::test]
async fn a_process_that_is_stopped_keeps_its_locks() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut holder = Process::start("holds", fixture.path());
    holder.token();
    holder.signal(Signal::STOP);
    let hurried = claim("a").with_ttl(Duration::from_millis(200));
    for _ in 0..10 {
        assert!(!matches!(driver.try_acquire(&hurried).await, Ok(Attempt::Granted(_))));
        tokio::time::sleep(hurried.ttl() / 5).await;
    }
    holder.signal(Signal::CONT);
    refused(&driver, &claim("a")).await;
    holder.succeeds();
    granted(&driver, &claim("a")).await;
}

#[tokio::test]
async fn a_hold_is_seen_until_its_process_ends() {
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let mut holder = Process::start("holds", fixture.path());
    let token = holder.token();
    for signal in [Signal::STOP, Signal::CONT] {
        let there = seen(&driver, "a").await.unwrap();
        let called = there.label().unwrap().as_str();
        assert!(called.ends_with(&format!(":{}", holder.child.id())), "{called}");
        assert_eq!(there.fencing_token().unwrap().get(), token);
        assert!(there.held_for().unwrap() < HANG);
        holder.signal(signal);
    }
    holder.signal(Signal::KILL);
    holder.child.wait().unwrap();
    let record = std::fs::read_to_string(fixture.file("a")).unwrap();
    assert!(record.contains("state held"), "it did not tidy up: {record}");
    assert_eq!(seen(&driver, "a").await, None);
    assert_eq!(driver.held(&Namespace::default()).await.unwrap(), []);
    assert_eq!(broken(&driver, "a", None).await, None);
    assert_eq!(std::fs::read_to_string(fixture.file("a")).unwrap(), record);
}

#[tokio::test]
async fn a_process_that_is_stopped_loses_a_lock_that_is_broken_and_learns_it_when_it_goes_on() {
    let fixture = Fixture::new();
    let (driver, next) = (fixture.driver().await, claim("a"));
    let mut holder = Process::start("is_broken", fixture.path());
    let first = holder.token();
    holder.signal(Signal::STOP);
    refused(&driver, &next).await;
    let there = broken(&driver, "a", None).await.unwrap();
    assert_eq!(there.fencing_token().unwrap().get(), first);
    assert_eq!(seen(&driver, "a").await, None);
    let second = token(&driver, &next).await;
    assert!(second > first, "{second} after {first}");
    holder.signal(Signal::CONT);
    holder.succeeds();
    // It touched nothing of the new one.
    driver.renew(&next).await.unwrap();
    assert_eq!(seen(&driver, "a").await.unwrap().owner(), next.owner());
}

#[test]
fn many_namespaces_take_few_descriptors() {
    let fixture = Fixture::new();
    Process::start("has_many_namespaces", fixture.path()).succeeds();
}

#[test]
fn a_process_without_descriptors_says_so() {
    let fixture = Fixture::new();
    Process::start("has_no_descriptors_left", fixture.path()).succeeds();
}

/// A process that is forked has a copy of each descriptor, and keeps it if it does not `exec`. Its
/// view is taken by copying the descriptor as the kernel does then.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_forked_process_does_not_keep_the_lock_beyond_its_release() {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let fixture = Fixture::new();
    let driver = fixture.driver().await;
    let held = claim("a");
    granted(&driver, &held).await;
    let is_it = |number: &i32| {
        let leads_to = std::fs::read_link(format!("/proc/self/fd/{number}"));
        leads_to.is_ok_and(|file| file == fixture.file("a").canonicalize().unwrap())
    };
    let number = (0..1000).find(is_it).unwrap();
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let copy = pidfd_getfd(this, number, PidfdGetfdFlags::empty()).unwrap();
    driver.release(&held).await.unwrap();
    granted(&driver, &claim("a")).await;
    drop(copy);
}
