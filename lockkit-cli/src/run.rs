//! `lockkit run`: acquire, start, watch, release.

use std::future::pending;
use std::io;
use std::process::Command;
use std::time::Duration;

use humantime::format_duration;
use lockkit::driver::Clock;
use lockkit::{AcquireOptions, DistributedLock, Error, Hold, Lease, LockGuard, Locker, Wait};
use rustix::process::Signal;
use tokio::select;
use tokio::time::timeout;

use crate::args::Run;
use crate::report::{self, chain, say};
use crate::signals::{self, Signals, Terminal};
use crate::tree::Tree;
use crate::{backend, exit, warden};

/// How long to wait for the lock without a word.
const QUIETLY: Duration = Duration::from_millis(500);

/// How long the backend may take to forget this process. What it does not forget runs out.
const CLEAN_UP: Duration = Duration::from_secs(5);

/// Runs a command under a lock and returns the exit code.
pub(crate) fn run(options: &Run) -> u8 {
    report::listen(options.verbose);
    // All on the main thread: a parent-death signal is sent when the thread ends that started the
    // process.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(error).report(options),
    };
    let code = runtime.block_on(attempt(options)).unwrap_or_else(|error| error.report(options));
    // Without waiting for a name that is still being looked up.
    runtime.shutdown_background();
    code
}

/// Why the command was not run.
enum Failure {
    Lock(Error),
    Signal(Signal),
    System(io::Error),
}

impl Failure {
    fn report(self, options: &Run) -> u8 {
        match self {
            Self::Lock(error) => {
                say(chain(&error));
                exit::of_error(&error, options.conflict_exit_code)
            }
            Self::Signal(signal) => exit::of_signal(signal),
            Self::System(error) => {
                say(chain(&error));
                exit::UNAVAILABLE
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

async fn attempt(options: &Run) -> Result<u8, Failure> {
    let terminal = Terminal::detect();
    let mut signals = Signals::catch(terminal)?;
    let url = backend::url(options.url.as_deref())?;
    let locker = select! {
        biased;
        signal = signals.end() => return Err(Failure::Signal(signal)),
        locker = lockkit::connect_url(&url) => locker?,
    };
    let limits = Limits::new(locker.lease(), options)?;
    let acquired = select! {
        biased;
        signal = signals.end() => Err(Failure::Signal(signal)),
        guard = acquire(&locker, options) => guard.map_err(Failure::Lock),
    };
    let code = match acquired {
        Ok(guard) => {
            let driver = locker.driver().id();
            match under_lock(guard, driver, options, limits, terminal, &mut signals).await {
                End::ByItself(code) => code,
                // What the backend may still have runs out.
                End::WithTheLock => return Ok(exit::LOST),
            }
        }
        Err(failure) => failure.report(options),
    };
    // What was given up leaves neither a hold nor a place.
    if timeout(CLEAN_UP, locker.shutdown()).await.is_err() {
        let (driver, name) = (locker.driver().id(), &options.name);
        say(format!("{driver} does not answer: what it keeps of lock `{name}` runs out by itself"));
    }
    Ok(code)
}

async fn acquire(locker: &Locker, options: &Run) -> lockkit::Result<LockGuard> {
    let lock = locker.lock(&options.name)?;
    let lock: Box<dyn DistributedLock> =
        if options.fair { Box::new(lock.fair()?) } else { Box::new(lock) };
    let (wait, how_long) = match (options.no_wait, options.wait) {
        (true, _) => (Wait::No, "for one answer".into()),
        (false, Some(patience)) => {
            (Wait::AtMost(patience), format!("for up to {}", format_duration(patience)))
        }
        (false, None) => (Wait::Forever, "for as long as it takes".into()),
    };
    let how = AcquireOptions::new().wait(wait);
    let how = options.ttl.map_or(how, |ttl| how.ttl(ttl));
    let mut acquiring = lock.acquire_with(how);
    if let Ok(outcome) = timeout(QUIETLY, &mut acquiring).await {
        return outcome;
    }
    let (name, driver) = (lock.name(), locker.driver().id());
    say(format!("waiting for lock `{name}` ({driver}) {how_long}"));
    acquiring.await
}

/// When the command has to end, as what is left of the hold.
#[derive(Clone, Copy)]
struct Limits {
    /// It is asked to.
    grace: Duration,
    /// It is killed: early enough to be gone when the lock ends.
    reserve: Duration,
}

impl Limits {
    fn new(lease: Lease, options: &Run) -> lockkit::Result<Self> {
        let ttl = options.ttl.unwrap_or(lease.ttl());
        let grace = options.grace.unwrap_or((ttl / 3).min(Duration::from_secs(5)));
        if grace > ttl / 2 {
            let (grace, ttl) = (format_duration(grace), format_duration(ttl));
            return Err(Error::config(
                "--grace",
                format!("{grace} is more than half of the TTL, which is {ttl}"),
            ));
        }
        let reserve = (ttl / 6).min(Duration::from_millis(500));
        Ok(Self { grace: grace.max(reserve), reserve })
    }
}

/// How the command ended.
enum End {
    /// With an exit code.
    ByItself(u8),
    WithTheLock,
}

/// Runs the command and releases the lock.
async fn under_lock(
    guard: LockGuard,
    driver: &str,
    options: &Run,
    limits: Limits,
    terminal: Terminal,
    signals: &mut Signals,
) -> End {
    let hold = guard.hold();
    let mut command = warden::command(&options.command);
    environment(&mut command, &hold, driver);
    let end = match Tree::start(command, terminal) {
        Ok(mut tree) => watch(&mut tree, &hold, limits, terminal, signals).await,
        Err(error) => Err(error),
    };
    let end =
        end.unwrap_or_else(|error| End::ByItself(warden::not_started(&options.command, &error)));
    match (guard.release().await, &end) {
        (Err(error), End::ByItself(_)) => {
            say(format!("the command has run under the lock, but: {}", chain(&error)));
        }
        // What is lost was reported.
        (Ok(()), _) | (Err(_), End::WithTheLock) => (),
    }
    end
}

/// Tells the command about its lock, and nothing about any other.
fn environment(command: &mut Command, hold: &Hold, driver: &str) {
    command.env("LOCKKIT_NAME", hold.name().as_str());
    command.env("LOCKKIT_OWNER", hold.owner().to_string());
    command.env("LOCKKIT_DRIVER", driver);
    match hold.fencing_token() {
        Some(token) => command.env("LOCKKIT_TOKEN", token.to_string()),
        None => command.env_remove("LOCKKIT_TOKEN"),
    };
}

/// Passes signals on until the command has ended, one way or the other.
async fn watch(
    tree: &mut Tree,
    hold: &Hold,
    limits: Limits,
    terminal: Terminal,
    signals: &mut Signals,
) -> io::Result<End> {
    loop {
        select! {
            biased;
            // Before anything else, since this process may have been stopped meanwhile.
            () = hold.lost() => break,
            status = tree.ended() => {
                let status = status?;
                if status.signaled() {
                    // Somebody killed the warden, and the kernel only the command with it.
                    kill(tree).await;
                }
                // By the clock: after a stop a timer may be late.
                if hold.is_held() {
                    return Ok(End::ByItself(exit::of_status(status)));
                }
                break;
            }
            () = until_left(hold, limits.grace) => break,
            signal = signals.next() => match signal {
                // The command first: it must not run while nobody watches.
                Signal::TSTP => {
                    tree.signal(Signal::STOP);
                    signals::stop();
                }
                signal if terminal.delivers(signal) => (),
                signal => tree.signal(signal),
            }
        }
    }
    end(tree, hold, limits).await;
    Ok(End::WithTheLock)
}

/// Ends the command, and everything below it, before the hold ends.
async fn end(tree: &mut Tree, hold: &Hold, limits: Limits) {
    let name = hold.name();
    let left = hold.valid_for().unwrap_or_default();
    if left > limits.reserve {
        say(format!("lock `{name}` ends in {left:.1?}: ending the command"));
        tree.signal(Signal::TERM);
        // What is stopped would not hear of it.
        tree.signal(Signal::CONT);
        select! {
            biased;
            () = tree.all_ended() => return,
            () = hold.lost() => (),
            () = until(left - limits.reserve) => (),
        }
    }
    let why = if hold.is_held() { "is about to end" } else { "is lost" };
    say(format!("lock `{name}` {why}: killing what still runs"));
    kill(tree).await;
}

async fn kill(tree: &mut Tree) {
    if let Err(left) = tree.kill().await {
        say(format!("{left} processes of the command cannot be killed"));
    }
}

/// Returns when the hold is good for no longer than `least`.
async fn until_left(hold: &Hold, least: Duration) {
    loop {
        match hold.valid_for() {
            Some(left) if left <= least => return,
            Some(left) => until(left - least).await,
            None => pending().await,
        }
    }
}

/// Sleeps on the clock of leases, which goes on while the machine is suspended.
async fn until(later: Duration) {
    let clock = Clock::system();
    clock.sleep_until(clock.now() + later).await;
}
