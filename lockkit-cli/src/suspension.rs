//! Ctrl-Z, as the warden sees to it: what it does not stop is not to run on while nobody renews the
//! lock.
//!
//! A terminal stops those in the process group that has it. That is `lockkit`, but neither what has
//! left the group, nor a program that ignores the signal.

use std::future::pending;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use tokio::signal::unix;
use tokio::time::{Instant, sleep_until};

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
    /// `None` where that signal is ignored, or `lockkit` catches it and stops all of the command,
    /// this process too.
    asked: Option<unix::Signal>,
    under_way: Option<Round>,
    /// What would not have stopped by itself.
    stopped: Vec<Pid>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    asked_at: Instant,
    due: Instant,
}

impl Suspension {
    /// Begins to catch the signal.
    pub(crate) fn catch(terminal: Terminal, lockkit: Pid) -> io::Result<Self> {
        let asked = match terminal {
            Terminal::Shared => signals::stops()?,
            Terminal::Apart => None,
        };
        Ok(Self { lockkit, asked, under_way: None, stopped: Vec::new() })
    }

    /// Returns when it is time for [`stop`](Self::stop). Cancel-safe.
    pub(crate) async fn due(&mut self) {
        match (self.under_way, &mut self.asked) {
            (Some(round), _) => sleep_until(round.due).await,
            (None, Some(asked)) => {
                asked.recv().await;
                let now = Instant::now();
                self.under_way = Some(Round { asked_at: now, due: now });
            }
            (None, None) => pending().await,
        }
    }

    /// Stops what still runs, if `lockkit` has been stopped. Whether it is leaves this to the kernel:
    /// in a process group that nobody would continue it stops nobody.
    pub(crate) fn stop(&mut self, tree: &Tree) {
        let Some(Round { asked_at, .. }) = self.under_way else { return };
        let waited = asked_at.elapsed();
        let is_stopped = processes::look(self.lockkit).is_some_and(|lockkit| lockkit.is_stopped());
        let is_done = is_stopped && self.stop_rest(tree, waited);
        let is_over = is_done || waited >= LIMIT;
        self.under_way = (!is_over).then_some(Round { asked_at, due: Instant::now() + ROUND });
    }

    /// Returns whether nothing runs.
    fn stop_rest(&mut self, tree: &Tree, waited: Duration) -> bool {
        let runs = |pid: &Pid| processes::look(*pid).is_some_and(|process| process.runs());
        let running: Vec<_> = tree.members().into_iter().filter(runs).collect();
        for pid in &running {
            if waited >= patience(*pid) {
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

/// How long a process may take to stop by itself.
fn patience(process: Pid) -> Duration {
    if getpgid(Some(process)).is_ok_and(|group| group != getpgrp()) {
        // The terminal has not told it to.
        Duration::ZERO
    } else if signals::ignores_stop(process) {
        GRACE
    } else {
        PATIENCE
    }
}
