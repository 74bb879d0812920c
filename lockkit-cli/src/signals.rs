//! The signals that this program does not leave to the system.

use std::future::{poll_fn, ready};
use std::io::{self, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::task::Poll;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::select;
use tokio::signal::unix::{self, SignalKind};
use tokio::task::yield_now;

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
    /// Whoever has a terminal may read from it whatever standard input is, as for a password. A
    /// command in another process group would be stopped for that, and nobody would continue it.
    pub(crate) fn detect() -> Self {
        let is_in_foreground =
            || open().is_ok_and(|tty| tcgetpgrp(tty).is_ok_and(|group| group == getpgrp()));
        if io::stdin().is_terminal() || is_in_foreground() { Self::Shared } else { Self::Apart }
    }

    /// Whether the command gets this signal without anybody passing it on.
    pub(crate) fn delivers(self, signal: Signal) -> bool {
        match (self, signal) {
            (Self::Apart, _) => false,
            (Self::Shared, Signal::INT | Signal::QUIT | Signal::CONT) => true,
            // From a terminal that hung up: it is none any more.
            (Self::Shared, Signal::HUP) => !io::stdin().is_terminal() && open().is_err(),
            (Self::Shared, _) => false,
        }
    }
}

/// Opens the terminal that this process is controlled by.
fn open() -> rustix::io::Result<OwnedFd> {
    // A terminal that is far away is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty())
}

/// Catches signals, for as long as this process lives.
///
/// Those that it was told to ignore, as `nohup` does, stay ignored, by the command too.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(crate) fn catch(terminal: Terminal) -> io::Result<Self> {
        // With a terminal of its own the whole group is stopped anyway.
        let stop = (terminal == Terminal::Apart).then_some(Signal::TSTP);
        let ends =
            [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
        let ignored = ignored()?;
        let caught = ends.into_iter().chain(stop).chain([Signal::CONT]);
        let caught = caught.filter(|signal| ignored & bit(*signal) == 0);
        caught
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next signal. Cancel-safe: none is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this program to end. Meanwhile it can be stopped and continued.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            if let Some(signal) = ends(self.next().await) {
                return signal;
            }
        }
    }

    /// The next of the signals that were sent up to now, if any.
    pub(crate) async fn arrived(&mut self) -> Option<Signal> {
        // A signal is seen when the runtime has looked for what is new, which it does before it
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
}

/// Stops this process or lets it go on, if that is what the signal is for; else returns it.
fn ends(signal: Signal) -> Option<Signal> {
    match signal {
        Signal::TSTP => stop(),
        Signal::CONT => (),
        signal => return Some(signal),
    }
    None
}

/// Stops this process; returns when it was continued.
pub(crate) fn stop() {
    // A process may always signal itself.
    _ = kill_process(getpid(), Signal::STOP);
}

/// The signals that this process was told to ignore, as the bits of a mask.
#[cfg(target_os = "linux")]
fn ignored() -> io::Result<u64> {
    const STATUS: &str = "/proc/self/status";
    let status = std::fs::read_to_string(STATUS)
        .map_err(|error| io::Error::new(error.kind(), format!("{STATUS}: {error}")))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::other(format!("{STATUS} has no line `SigIgn`")))
}

/// Only unsafe code can ask.
#[cfg(not(target_os = "linux"))]
fn ignored() -> io::Result<u64> {
    Ok(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}
