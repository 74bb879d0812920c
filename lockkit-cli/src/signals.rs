//! The signals that this program does not leave to the system.

use std::future::{poll_fn, ready};
use std::io::{self, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpgrp, getpid, getrlimit, getsid, kill_process, setrlimit,
};
use rustix::termios::tcgetpgrp;
use signal_hook::flag;
use tokio::select;
use tokio::signal::unix::{self, SignalKind};
use tokio::task::yield_now;

use crate::exit;

/// The signals that ask a program to end.
pub(crate) const ASK_FOR_THE_END: [Signal; 4] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals by which a terminal stops a program, also at a `read` or a `write` of somebody in its
/// process group.
pub(crate) const ASK_TO_STOP: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// Those that mean something to a command, and end a program that does not catch them. This one
/// does, as with those above, and ends in its own time.
const FOR_THE_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// The signals that came to this process, as the bits of a mask.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Whether a SIGCONT has come that nobody has seen to yet.
static IS_CONTINUED: AtomicBool = AtomicBool::new(false);

/// Who else gets the signals that come from a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// The command: it is in the process group of this program, which has the terminal or may be
    /// given it by a shell.
    Shared,
    /// Not the command: it has a process group of its own.
    Apart,
}

impl Terminal {
    /// Whoever has a terminal may read from it, as for a password, whatever standard input is. A
    /// command in another process group would be stopped for that, and nobody would continue it.
    pub(crate) fn detect() -> Self {
        let is_in_foreground =
            || open().is_ok_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group == getpgrp()));
        if io::stdin().is_terminal() || is_in_foreground() { Self::Shared } else { Self::Apart }
    }

    /// Whether the process group of `lockkit` gets this signal without anybody passing it on.
    pub(crate) fn delivers(self, signal: Signal, lockkit: Pid) -> bool {
        match (self, signal) {
            (Self::Apart, _) => false,
            (Self::Shared, Signal::INT | Signal::QUIT) => true,
            // When a terminal hangs up, the leader of its session alone gets both signals.
            (Self::Shared, Signal::HUP | Signal::CONT) if leads_session(lockkit) => false,
            (Self::Shared, Signal::CONT) => true,
            // The leader has ended, or sent it to everybody. The terminal is no longer one.
            (Self::Shared, Signal::HUP) => !io::stdin().is_terminal() && open().is_err(),
            (Self::Shared, _) => false,
        }
    }
}

/// Whether a terminal counts on this process to end everybody else who is at it.
fn leads_session(process: Pid) -> bool {
    getsid(Some(process)).is_ok_and(|leader| leader == process)
}

/// Opens the controlling terminal of this process.
fn open() -> rustix::io::Result<OwnedFd> {
    // A terminal that is far away is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty())
}

/// Catches signals, for as long as this process lives.
///
/// Signals that it was told to ignore, as by `nohup`, stay ignored, by the command too. Signals
/// that were blocked do not stay so: whoever blocks the end of a child, or that of a parent, would
/// wait for ever.
pub(crate) struct Signals {
    caught: Vec<(Signal, unix::Signal)>,
    needed: SigSet,
    /// What was blocked when this process began.
    blocked: SigSet,
}

impl Signals {
    pub(crate) fn catch(terminal: Terminal) -> io::Result<Self> {
        // Where a terminal is shared, it stops this process, and the warden sees to the rest.
        let stops = ASK_TO_STOP.into_iter().filter(|_| terminal == Terminal::Apart);
        let ignored = ignored()?;
        let caught =
            ASK_FOR_THE_END.into_iter().chain(FOR_THE_COMMAND).chain(stops).chain([Signal::CONT]);
        let caught = caught.filter(|signal| ignored & bit(*signal) == 0);
        let caught: Vec<_> = caught
            .map(|signal| {
                if signal == Signal::CONT {
                    // First, so that this is known no later than the signal is.
                    flag::register(signal.as_raw(), &IS_CONTINUED)?;
                }
                Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?))
            })
            .collect::<io::Result<_>>()?;
        let mut needed = SigSet::empty();
        // What is not caught stays as it is: a command that blocks SIGTSTP must not run on beside
        // a `lockkit` that was stopped by it.
        let others = [Signal::CHILD, Signal::CONT, Signal::WINCH];
        for signal in caught.iter().map(|(signal, _)| *signal).chain(others) {
            needed.add(nix::sys::signal::Signal::try_from(signal.as_raw())?);
        }
        // Only now that they are caught, since some may have come before.
        let blocked = needed.thread_swap_mask(SigmaskHow::SIG_UNBLOCK)?;
        Ok(Self { caught, needed, blocked })
    }

    /// Starts something with those signals blocked that were blocked when this process began.
    pub(crate) fn as_found<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.blocked.thread_set_mask()?;
        let started = start();
        self.needed.thread_unblock()?;
        started
    }

    /// The next signal. Cancel-safe: none is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.caught {
                if stream.poll_recv(cx).is_ready() {
                    RECEIVED.fetch_or(bit(*signal), Ordering::Relaxed);
                    if *signal == Signal::CONT {
                        IS_CONTINUED.store(false, Ordering::SeqCst);
                    }
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this program to end. Meanwhile the program can be stopped and
    /// continued.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            if let Some(signal) = ends(self.next().await) {
                return signal;
            }
        }
    }

    /// As [`end`](Self::end), when there is no command any more: what was meant for it is for nobody.
    pub(crate) async fn end_without_command(&mut self) -> Signal {
        loop {
            let signal = self.end().await;
            if !FOR_THE_COMMAND.contains(&signal) {
                return signal;
            }
        }
    }

    /// The next of the signals that were sent up to now, if any.
    pub(crate) async fn arrived(&mut self) -> Option<Signal> {
        // A signal is seen once the runtime has looked for what is new, which it does before it
        // comes back.
        yield_now().await;
        select! {
            biased;
            signal = self.next() => Some(signal),
            () = ready(()) => None,
        }
    }

    /// The next of the signals that were sent up to now that asks this program to end.
    pub(crate) async fn arrived_end(&mut self) -> Option<Signal> {
        while let Some(signal) = self.arrived().await {
            if let Some(signal) = ends(signal) {
                return Some(signal);
            }
        }
        None
    }

    /// Takes no further notice of the signals that were sent up to now.
    pub(crate) async fn forget(&mut self) {
        while self.arrived_end().await.is_some() {}
    }
}

/// Tells of the signals by which a terminal stops a program, except those that are ignored. What is
/// blocked stays so: then it stops nobody.
#[cfg(target_os = "linux")]
pub(crate) fn stops() -> io::Result<Vec<(Signal, unix::Signal)>> {
    let ignored = ignored()?;
    let heeded = ASK_TO_STOP.into_iter().filter(|signal| ignored & bit(*signal) == 0);
    heeded
        .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
        .collect()
}

/// Whether a process ignores a signal. What is not seen does not.
#[cfg(target_os = "linux")]
pub(crate) fn ignores(process: Pid, signal: Signal) -> bool {
    ignored_by(&process.to_string()).is_ok_and(|ignored| ignored & bit(signal) != 0)
}

/// Stops this process or lets it go on, if that is what the signal is for; otherwise returns it.
fn ends(signal: Signal) -> Option<Signal> {
    match signal {
        signal if ASK_TO_STOP.contains(&signal) => stop(),
        Signal::CONT => (),
        signal => return Some(signal),
    }
    None
}

/// Stops this process as a signal has asked for, unless SIGCONT has come as well; returns once it is
/// continued.
pub(crate) fn stop() {
    // In whatever order they came, which nobody tells: it is worse to be stopped for good than not to
    // be stopped. One that comes just now is in vain: no process can look and stop in one step.
    if !IS_CONTINUED.load(Ordering::SeqCst) {
        // A process may always signal itself.
        _ = kill_process(getpid(), Signal::STOP);
        // What has continued it does not count against the next stop.
        IS_CONTINUED.store(false, Ordering::SeqCst);
    }
}

/// Ends this process by the signal that an exit code stands for, if that signal has come to it;
/// otherwise returns.
///
/// A shell ends a script at Ctrl-C only if the program that it waits for was ended by the signal.
/// After an exit code, even 130, the script goes on: to such a program Ctrl-C means something else.
pub(crate) fn end_by(code: u8) {
    let received = RECEIVED.load(Ordering::Relaxed);
    let is_it = |signal: &Signal| received & bit(*signal) != 0 && code == exit::of_signal(*signal);
    // The first process of a system or a container is not ended by its own signals.
    if let Some(signal) = ASK_FOR_THE_END.into_iter().chain(FOR_THE_COMMAND).find(is_it)
        && !getpid().is_init()
    {
        leave_no_core();
        // This fails for signals that the crate does not know.
        _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
}

/// Leaves no core after SIGQUIT, since it would tell nothing.
fn leave_no_core() {
    let maximum = getrlimit(Resource::Core).maximum;
    // One byte: with a limit of zero, a program that the system hands cores to would still be
    // asked.
    let current = Some(maximum.map_or(1, |maximum| maximum.min(1)));
    // If this is refused, there is a core.
    _ = setrlimit(Resource::Core, Rlimit { current, maximum });
}

/// The signals that this process was told to ignore, as the bits of a mask.
#[cfg(target_os = "linux")]
fn ignored() -> io::Result<u64> {
    ignored_by("self")
}

/// Those that a process ignores, by the name that it has in /proc.
#[cfg(target_os = "linux")]
fn ignored_by(process: &str) -> io::Result<u64> {
    let path = format!("/proc/{process}/status");
    // The name of the program, which comes first, can have anything in it.
    let status = std::fs::read(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::other(format!("{path} has no line `SigIgn`")))
}

/// Only unsafe code can ask.
#[cfg(not(target_os = "linux"))]
fn ignored() -> io::Result<u64> {
    Ok(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::env;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
    use tokio::signal::unix::{self, SignalKind};
    use tokio::sync::Mutex;

    use super::{Signals, Terminal, stop};

    /// For a test that sends signals or has children, which all tests of this process hear of.
    pub(crate) static IN_TURN: Mutex<()> = Mutex::const_new(());

    /// Which signals the child is to send itself.
    const SIGNALS: &str = "LOCKKIT_TEST_SIGNALS";

    /// Stops as it is told to; does nothing when run as a test.
    #[tokio::test]
    async fn child() {
        let Ok(numbers) = env::var(SIGNALS) else { return };
        let mut signals = Signals::catch(Terminal::Apart).unwrap();
        for signal in [Signal::TSTP, Signal::CONT] {
            if numbers.contains(&signal.as_raw().to_string()) {
                let mut heard = unix::signal(SignalKind::from_raw(signal.as_raw())).unwrap();
                kill_process(getpid(), signal).unwrap();
                // Or else the kernel takes one back when the next is sent.
                heard.recv().await;
            }
        }
        assert_eq!(signals.next().await, Signal::TSTP);
        stop();
        // The command is to hear of it.
        assert_eq!(signals.next().await, Signal::CONT);
    }

    /// Whether a process that sends itself these signals stops.
    fn stops(signals: &[Signal]) -> bool {
        let numbers: Vec<_> = signals.iter().map(|signal| signal.as_raw().to_string()).collect();
        #[expect(clippy::zombie_processes, reason = "it is waited for below, also when it stops")]
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "signals::tests::child"])
            .env(SIGNALS, numbers.join(" "))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let child = Pid::from_child(&child);
        let wait = || waitpid(Some(child), WaitOptions::UNTRACED).unwrap().unwrap().1;
        let stopped = wait();
        if stopped.stopped() {
            kill_process(child, Signal::CONT).unwrap();
            assert_eq!(wait().exit_status(), Some(0));
            return true;
        }
        assert_eq!(stopped.exit_status(), Some(0));
        false
    }

    #[tokio::test]
    async fn a_stop_that_was_taken_back_stops_nobody() {
        let _turn = IN_TURN.lock().await;
        assert!(!stops(&[Signal::TSTP, Signal::CONT]));
        assert!(stops(&[Signal::TSTP]));
    }
}
