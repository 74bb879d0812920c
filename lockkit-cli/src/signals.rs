//! The signals that this program does not leave to the system.

use std::future::poll_fn;
use std::io::{self, IsTerminal as _};
use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// Who else gets the signals that come from a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// The command: it is in the process group of this program, which has the terminal.
    Shared,
    /// Not the command: it has a process group of its own.
    Apart,
}

impl Terminal {
    pub(crate) fn detect() -> Self {
        if io::stdin().is_terminal() { Self::Shared } else { Self::Apart }
    }

    /// Whether the command gets this signal without anybody passing it on.
    pub(crate) fn delivers(self, signal: Signal) -> bool {
        match (self, signal) {
            (Self::Apart, _) => false,
            (Self::Shared, Signal::INT | Signal::QUIT | Signal::CONT) => true,
            // From a terminal that hung up: it is none any more.
            (Self::Shared, Signal::HUP) => !io::stdin().is_terminal(),
            (Self::Shared, _) => false,
        }
    }
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
            match self.next().await {
                Signal::TSTP => stop(),
                Signal::CONT => (),
                signal => return signal,
            }
        }
    }
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
