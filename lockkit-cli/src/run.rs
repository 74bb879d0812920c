//! `lockkit run`: acquire, start, watch, release.

mod taking;

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use humantime::format_duration;
use lockkit::driver::{Clock, Instant};
use lockkit::{Error, Hold, Liveness, LockGuard, Locker};
use rustix::process::Signal;
use tokio::select;
use tokio::time::timeout;

use self::taking::take;
use crate::args::Run;
use crate::command::{End, watch};
use crate::gate::Gate;
use crate::limits::Limits;
use crate::report::{self, Volume, chain, say};
use crate::signals::{Signals, Terminal};
use crate::tree::{self, Tree};
use crate::{backend, exit, voice, warden};

/// The owners on whose behalf this command runs: that of this run, and those of the runs it is in.
const OWNERS: &str = "LOCKKIT_OWNERS";

/// The fencing tokens of the same, in the same order, with `-` where there is none.
const TOKENS: &str = "LOCKKIT_TOKENS";

/// How long a release may still take after a signal: most are answered sooner, and the lock is then
/// free.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Runs a command under a lock and returns the exit code.
pub(crate) fn run(options: &Run) -> u8 {
    report::listen(match (options.quiet, options.verbose) {
        (true, _) => Volume::Errors,
        (_, true) => Volume::Everything,
        _ => Volume::Warnings,
    });
    let _last_words = voice::LastWords;
    // Otherwise whoever stops reading standard error would stop renewals, and the end of the
    // command.
    let outcome = match voice::begin() {
        // All on the main thread: a parent-death signal is sent when the thread that started the
        // process ends.
        Ok(()) => backend::block_on(attempt(options)).map_err(Failure::Lock).flatten(),
        Err(error) => Err(Failure::System(error)),
    };
    outcome.unwrap_or_else(|failure| failure.report(options))
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
                if !(options.quiet && exit::is_conflict(&error)) {
                    say(chain(&error));
                }
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
    // Before the lock is asked for, which others could use; and before signals are caught, which
    // needs the same.
    tree::check()?;
    let mut signals = Signals::catch(terminal)?;
    let url = backend::url(&options.place)?;
    let locker = select! {
        biased;
        signal = signals.end() => return Err(Failure::Signal(signal)),
        locker = lockkit::connect_url(&url) => locker?,
    };
    let limits = Limits::new(locker.lease(), options)?;
    let (code, last) = match take(&locker, options, &mut signals).await {
        Ok((guard, shared)) => {
            let driver = locker.driver().id();
            let limits = match locker.capabilities().liveness {
                Liveness::Session => of_session(limits, &locker, &guard, options),
                _ => limits,
            };
            let (end, last) =
                under_lock(guard, shared, driver, options, limits, terminal, &mut signals).await;
            let code = match end {
                End::ByItself(code) | End::AsTold(code) => code,
                End::WithTheLock => exit::LOST,
            };
            (code, last)
        }
        Err(failure) => {
            let code = failure.report(options);
            // Those were for the wait.
            signals.forget().await;
            (code, Last::Failed)
        }
    };
    if let Some(left) = clean_up(&locker, &options.name, last, &mut signals).await {
        say(left);
    }
    Ok(code)
}

/// How long before the session's end the command has to, which is said if it is not as told.
fn of_session(limits: Limits, locker: &Locker, guard: &LockGuard, options: &Run) -> Limits {
    let limits = limits.of_session(locker.lease().ttl(), guard.hold().ttl());
    if let Some(grace) = options.grace.filter(|grace| *grace > limits.grace && !options.quiet) {
        let (grace, left) = (format_duration(grace), limits.grace);
        say(format!("the session is short: the command has {left:.1?} to end, and not {grace}"));
    }
    limits
}

/// How the last request about the lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// The lock was let go of.
    Answered,
    /// It may still be carried out.
    Failed,
    /// The same, since a signal came before the answer.
    CutShort,
}

/// Makes sure that what was given up leaves neither a hold nor a place, unless that takes too long
/// or a signal cuts it short. Then this returns what is to be said of it.
async fn clean_up(
    locker: &Locker,
    name: &str,
    last: Last,
    signals: &mut Signals,
) -> Option<String> {
    const TOLD: &str = "told to end at once: ";
    let why = match last {
        Last::CutShort => TOLD,
        Last::Answered | Last::Failed => select! {
            biased;
            cleaned_up = timeout(backend::CLEAN_UP, locker.shutdown()) => match cleaned_up {
                Ok(()) => return None,
                Err(_) => "",
            },
            _ = signals.end_without_command() => TOLD,
        },
    };
    let driver = locker.driver().id();
    Some(match last {
        // There may be a request before it that had no answer.
        Last::Answered => format!(
            "{why}the connection to {driver} was not closed in good order; what a request without \
             an answer may have left at lock `{name}` runs out by itself"
        ),
        // That the backend answers by now does not recall what was sent before.
        Last::Failed | Last::CutShort => format!(
            "{why}what became of a request to {driver} is not known: what it may leave at lock \
             `{name}` runs out by itself"
        ),
    })
}

/// Runs the command and releases the lock.
async fn under_lock(
    guard: LockGuard,
    shared: Option<OwnedFd>,
    driver: &str,
    options: &Run,
    limits: Limits,
    terminal: Terminal,
    signals: &mut Signals,
) -> (End, Last) {
    let hold = guard.hold();
    let begun = Clock::system().now();
    let mut command = None;
    let end = match too_late(&hold, signals).await {
        Some(end) => {
            drop(shared);
            Ok(end)
        }
        None => {
            let started = start(&options.command, &hold, driver, terminal, signals);
            // The command has inherited the descriptor. A copy here would outlast the release.
            drop(shared);
            match started {
                Ok((tree, mut gate)) => {
                    let tree = command.insert(tree);
                    watch(tree, &mut gate, &hold, limits, terminal, signals).await
                }
                Err(error) => Err(error),
            }
        }
    };
    let mut was_alone = false;
    if let (Ok(End::ByItself(code)), Some(least)) = (&end, options.at_least)
        && let Some(tree) = &mut command
        && !exit::means_not_started(*code)
    {
        was_alone = linger(&hold, begun + least, tree, signals).await;
    }
    let end =
        end.unwrap_or_else(|error| End::ByItself(warden::not_started(&options.command, &error)));
    let Some(released) = release(guard, signals).await else { return (end, Last::CutShort) };
    let last = if released.is_ok() { Last::Answered } else { Last::Failed };
    match (released, &end) {
        // The lock was taken away since the last renewal, at a moment that nobody knows.
        (Err(error @ Error::Lost { .. }), End::ByItself(_) | End::AsTold(_))
            if command.is_some() && !was_alone =>
        {
            say(format!("{}: the command may not have been alone", chain(&error)));
            return (End::ByItself(exit::LOST), last);
        }
        (Err(error), End::ByItself(_) | End::AsTold(_)) => {
            let what = match command {
                Some(_) => "the command has run under the lock",
                None => "nothing was run",
            };
            say(format!("{what}, but: {}", chain(&error)));
        }
        // That the lock is lost was reported.
        (Ok(()), _) | (Err(_), End::WithTheLock) => (),
    }
    (end, last)
}

/// Lets the lock go, unless a signal comes first; the release then goes on for as long as this
/// process does.
async fn release(guard: LockGuard, signals: &mut Signals) -> Option<lockkit::Result<()>> {
    // Those were for the command.
    signals.forget().await;
    let mut releasing = pin!(guard.release());
    select! {
        biased;
        // Whatever comes next, the request leaves.
        released = &mut releasing => Some(released),
        _ = signals.end_without_command() => timeout(A_MOMENT, releasing).await.ok(),
    }
}

/// Why the command is not to be started, at the last moment before it is.
async fn too_late(hold: &Hold, signals: &mut Signals) -> Option<End> {
    // In this order: a signal may have stopped this process.
    if let Some(signal) = signals.arrived_end().await {
        return Some(End::AsTold(exit::of_signal(signal)));
    }
    if !hold.is_held() {
        say(format!("lock `{}` is lost: the command is not started", hold.name()));
        return Some(End::WithTheLock);
    }
    None
}

/// Starts the command, which waits at the gate.
fn start(
    program: &[OsString],
    hold: &Hold,
    driver: &str,
    terminal: Terminal,
    signals: &Signals,
) -> io::Result<(Tree, Gate)> {
    let gate = Gate::new()?;
    let mut command = warden::command(program, &gate);
    environment(&mut command, hold, driver);
    Ok((Tree::start(command, terminal, signals)?, gate))
}

/// Keeps the lock until then, unless a signal asks for the end or the lock is lost, which is
/// reported when it is released. Returns whether the command, which has ended, has been alone for all
/// that is known, whatever becomes of the lock: the backend confirmed it after that, or the lease was
/// over in its own time, and nobody answered.
async fn linger(hold: &Hold, until: Instant, tree: &mut Tree, signals: &mut Signals) -> bool {
    let clock = Clock::system();
    // Not after the look at what is left.
    let ended = clock.now();
    let left = hold.valid_for().filter(|left| !left.is_zero());
    let good_until = left.map(|left| ended + left);
    select! {
        biased;
        () = hold.ended() => (),
        _ = signals.end_without_command() => (),
        () = clock.sleep_until(until) => (),
        never = tree.reap() => match never {},
    }
    let now = clock.now();
    hold.unconfirmed_for() <= now.saturating_duration_since(ended)
        || good_until.is_some_and(|good_until| good_until <= now)
}

/// Tells the command about its lock, and of others only whose they are and the tokens.
fn environment(command: &mut Command, hold: &Hold, driver: &str) {
    command.env("LOCKKIT_NAME", hold.name().as_str());
    command.env("LOCKKIT_OWNER", hold.owner().to_string());
    command.env("LOCKKIT_DRIVER", driver);
    let token = hold.fencing_token().map(|token| token.to_string());
    let or_none = token.clone().unwrap_or_else(|| "-".into());
    for (list, own) in [(OWNERS, hold.owner().to_string()), (TOKENS, or_none)] {
        let outer = env::var(list).map_or(String::new(), |outer| format!(" {outer}"));
        command.env(list, own + &outer);
    }
    match token {
        Some(token) => command.env("LOCKKIT_TOKEN", token),
        None => command.env_remove("LOCKKIT_TOKEN"),
    };
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use clap::{Args as _, FromArgMatches as _};
    use lockkit::driver::{Attempt, Claim, Driver, DriverError, Release, Renewal};
    use lockkit::memory::{Fault, MemoryDriver};
    use lockkit::{Capabilities, ErrorKind, Locker, Operation};
    use rustix::process::{Signal, getpid, kill_process};
    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::{End, Failure, Last, Limits, clean_up, take, too_late, under_lock};
    use crate::args::Run;
    use crate::signals::tests::IN_TURN;
    use crate::signals::{Signals, Terminal};

    /// A guard against hanging, not a limit.
    const HANG: Duration = Duration::from_secs(60);

    /// Gives, keeps and frees locks, and answers nothing else.
    #[derive(Debug)]
    struct Mute {
        locks: MemoryDriver,
        asked: Arc<Notify>,
    }

    #[async_trait]
    impl Driver for Mute {
        fn id(&self) -> &'static str {
            "mute"
        }

        fn capabilities(&self) -> Capabilities {
            self.locks.capabilities()
        }

        async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, DriverError> {
            self.locks.try_acquire(claim).await
        }

        async fn renew(&self, claim: &Claim) -> Result<Renewal, DriverError> {
            self.locks.renew(claim).await
        }

        async fn release(&self, claim: &Claim) -> Result<Release, DriverError> {
            self.locks.release(claim).await
        }

        async fn descriptor(&self, _: &Claim) -> Result<Option<OwnedFd>, DriverError> {
            self.asked.notify_one();
            std::future::pending().await
        }

        async fn close(&self) {
            self.asked.notify_one();
            std::future::pending().await
        }
    }

    fn options() -> Run {
        let grammar = Run::augment_args(clap::Command::new("run"));
        Run::from_arg_matches(&grammar.get_matches_from(["run", "name", "--", "true"])).unwrap()
    }

    #[tokio::test]
    async fn a_signal_ends_the_wait_for_what_the_command_inherits() {
        let _turn = IN_TURN.lock().await;
        let (locks, asked) = (MemoryDriver::new(), Arc::new(Notify::new()));
        let locker = Locker::new(Mute { locks: locks.clone(), asked: Arc::clone(&asked) });
        let options = options();
        let mut signals = Signals::catch(Terminal::Apart).unwrap();
        let told = async {
            asked.notified().await;
            kill_process(getpid(), Signal::USR1).unwrap();
        };
        let taking = timeout(HANG, take(&locker, &options, &mut signals));
        let (taken, ()) = tokio::join!(taking, told);
        assert!(matches!(taken.unwrap(), Err(Failure::Signal(Signal::USR1))));
        // The lock is let go of before the driver closes.
        tokio::select! {
            () = locker.shutdown() => (),
            () = asked.notified() => (),
        }
        assert!(locks.is_idle());
    }

    #[tokio::test]
    async fn what_is_not_known_is_said_only_if_it_is_not_known() {
        let _turn = IN_TURN.lock().await;
        let fault = Fault::Fail(ErrorKind::Unreachable);
        for (fault, expected) in [(None, Last::Answered), (Some(fault), Last::Failed)] {
            let [mut signals, mut others] =
                [(); 2].map(|()| Signals::catch(Terminal::Apart).unwrap());
            let (locks, asked) = (MemoryDriver::new(), Arc::new(Notify::new()));
            let locker = Locker::new(Mute { locks: locks.clone(), asked: Arc::clone(&asked) });
            let guard = locker.lock("name").unwrap().acquire().await.unwrap();
            fault.into_iter().for_each(|fault| locks.faults().inject(Operation::Release, fault));
            // So that nothing is started.
            kill_process(getpid(), Signal::USR1).unwrap();
            others.next().await;
            let (options, terminal) = (options(), Terminal::Apart);
            let limits = Limits::new(locker.lease(), &options).unwrap();
            let (_, last) =
                under_lock(guard, None, "mute", &options, limits, terminal, &mut signals).await;
            assert_eq!(last, expected);

            let told = async {
                asked.notified().await;
                // It was for the command, and there is none.
                kill_process(getpid(), Signal::USR1).unwrap();
                kill_process(getpid(), Signal::TERM).unwrap();
            };
            let (left, ()) = tokio::join!(clean_up(&locker, "name", last, &mut signals), told);
            let left = left.unwrap();
            assert!(left.starts_with("told to end at once: "), "{left}");
            assert_eq!(left.contains("is not known"), last == Last::Failed, "{left}");
            assert_eq!(left.contains("in good order"), last == Last::Answered, "{left}");
        }
    }

    #[tokio::test]
    async fn a_command_is_started_only_while_it_is_wanted_and_has_its_lock() {
        let _turn = IN_TURN.lock().await;
        let locker = lockkit::connect("memory:run").await.unwrap();
        let guard = locker.lock("name").unwrap().acquire().await.unwrap();
        let [mut signals, mut others] = [(); 2].map(|()| Signals::catch(Terminal::Apart).unwrap());
        assert!(too_late(&guard.hold(), &mut signals).await.is_none());

        kill_process(getpid(), Signal::USR2).unwrap();
        assert_eq!(others.next().await, Signal::USR2);
        let code = 128 + u8::try_from(Signal::USR2.as_raw()).unwrap();
        let end = too_late(&guard.hold(), &mut signals).await;
        assert!(matches!(end, Some(End::AsTold(told)) if told == code));

        locker.break_hold("name", None).await.unwrap();
        guard.lost().await;
        let end = too_late(&guard.hold(), &mut signals).await;
        assert!(matches!(end, Some(End::WithTheLock)));
    }
}
