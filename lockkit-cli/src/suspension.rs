//! Ctrl-Z, and what else a terminal stops a process group for, as the warden sees to it: what is not
//! stopped by that is not to run on while nobody renews the lock.
//!
//! A terminal stops those in the process group that has it, or that uses it from the background. That
//! is `lockkit`, but neither what has left the group, nor a program that ignores the signal.
//!
//! Where `lockkit` catches the signal, it stops all of the command itself, and then itself.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use tokio::signal::unix;
use tokio::time::{Instant, sleep, sleep_until};

use crate::processes;
use crate::signals::{self, Terminal};
use crate::tree::Tree;

/// How long a program may ignore the signal: some do so while they see to it.
const GRACE: Duration = Duration::from_millis(100);

/// How long a program that has the terminal may take to leave it as it was, before it stops itself.
/// If it were stopped in the midst of that, it would do the rest, and stop, when it is continued.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long all of it may take to be stopped, on a machine under load.
const LIMIT: Duration = Duration::from_secs(2);

/// How long until the next look.
const ROUND: Duration = Duration::from_millis(5);

/// Stops all of the command with `lockkit`, and lets it go on.
///
/// Whoever does this is not stopped itself: it could not tell whether a signal that continues it came
/// before or after the one that stops it.
#[derive(Debug)]
pub(crate) struct Suspension {
    lockkit: Pid,
    /// Without those that are ignored; none where `lockkit` catches them and stops all of the
    /// command, this process too.
    signals: Vec<(Signal, unix::Signal)>,
    under_way: Option<Round>,
    /// What would not have stopped by itself.
    stopped: Vec<Pid>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    signal: Signal,
    asked_at: Instant,
    due: Instant,
}

impl Suspension {
    /// Begins to catch the signals.
    pub(crate) fn catch(terminal: Terminal, lockkit: Pid) -> io::Result<Self> {
        let signals = match terminal {
            Terminal::Shared => signals::stops()?,
            Terminal::Apart => Vec::new(),
        };
        Ok(Self { lockkit, signals, under_way: None, stopped: Vec::new() })
    }

    /// Returns when it is time for [`stop`](Self::stop). Cancel-safe.
    pub(crate) async fn due(&mut self) {
        match self.under_way {
            Some(round) => sleep_until(round.due).await,
            None => {
                let signal = self.asked().await;
                let now = Instant::now();
                self.under_way = Some(Round { signal, asked_at: now, due: now });
            }
        }
    }

    /// The next signal. Cancel-safe.
    async fn asked(&mut self) -> Signal {
        poll_fn(|cx| {
            let came = |(signal, stream): &mut (Signal, unix::Signal)| {
                stream.poll_recv(cx).is_ready().then_some(*signal)
            };
            self.signals.iter_mut().find_map(came).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Stops what still runs, if `lockkit` has been stopped. Whether it is leaves this to the kernel:
    /// in a process group that nobody would continue it stops nobody.
    pub(crate) fn stop(&mut self, tree: &Tree) {
        let Some(round) = self.under_way else { return };
        let waited = round.asked_at.elapsed();
        let is_stopped = processes::look(self.lockkit).is_some_and(|lockkit| lockkit.is_stopped());
        let is_done = is_stopped && self.stop_rest(tree, round.signal, waited);
        let is_over = is_done || waited >= LIMIT;
        self.under_way = (!is_over).then_some(Round { due: Instant::now() + ROUND, ..round });
    }

    /// Returns whether nothing runs.
    fn stop_rest(&mut self, tree: &Tree, signal: Signal, waited: Duration) -> bool {
        let running = running(tree);
        for pid in &running {
            if waited >= patience(*pid, signal) {
                // What is gone needs no signal. What gained rights goes on.
                _ = kill_process(*pid, Signal::STOP);
                self.stopped.push(*pid);
            }
        }
        running.is_empty()
    }

    /// Lets go on what was stopped here.
    pub(crate) fn end(&mut self, tree: &Tree) {
        self.under_way = None;
        let stopped = std::mem::take(&mut self.stopped);
        // A number that is no longer below may be somebody else's.
        for pid in tree.members().into_iter().filter(|pid| stopped.contains(pid)) {
            // As above.
            _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// Stops what still runs of a command that was told to stop, and returns when nothing does, or after
/// a [while](LIMIT): what was started during a look at all processes is seen by the next.
pub(crate) async fn stop_rest(tree: &Tree) {
    let limit = Instant::now() + LIMIT;
    loop {
        let running = running(tree);
        if running.is_empty() || Instant::now() >= limit {
            return;
        }
        for pid in running {
            // As above.
            _ = kill_process(pid, Signal::STOP);
        }
        sleep(ROUND).await;
    }
}

fn running(tree: &Tree) -> Vec<Pid> {
    let runs = |pid: &Pid| processes::look(*pid).is_some_and(|process| process.runs());
    tree.members().into_iter().filter(runs).collect()
}

/// How long a process may take to stop by itself, as the signal asks for.
fn patience(process: Pid, signal: Signal) -> Duration {
    if getpgid(Some(process)).is_ok_and(|group| group != getpgrp()) {
        // The terminal has not told it to.
        Duration::ZERO
    } else if signals::ignores(process, signal) {
        GRACE
    } else {
        PATIENCE
    }
}
