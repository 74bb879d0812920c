//! What makes the command end with `lockkit`, even when that is killed.
//!
//! On Linux the command is started in two steps, each of which is this program again:
//!
//! - The **warden** is the parent of the command. When its own parent, `lockkit run`, is gone, it
//!   kills everything below it. For that it adopts orphans, and is woken by a parent-death signal.
//!   It also passes on to the command what is sent to the process group that the command has left,
//!   and stops what a terminal does not stop.
//! - The **exec** step sets the parent-death signal of the command to come, checks that its parent,
//!   the warden, was there all the time, and becomes the command. So the command ends even if
//!   `lockkit run` and the warden are killed together.
//!
//! Each waits at a [gate](Gate) until its parent has passed on the signals that came before it was
//! there.
//!
//! Other systems have no parent-death signal: there the command is started directly.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use crate::exit;
use crate::gate::Gate;
use crate::report::say;
use crate::table::visible;

#[cfg(target_os = "linux")]
pub(crate) use self::linux::{command, step};

/// The command as it is, which waits at no gate.
#[cfg(not(target_os = "linux"))]
pub(crate) fn command(program: &[OsString], _gate: &Gate) -> Command {
    plain(program)
}

/// There are no steps.
#[cfg(not(target_os = "linux"))]
pub(crate) fn step(_arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    None
}

/// A program and its arguments; an empty name is that of no program.
fn plain(program: &[OsString]) -> Command {
    let mut words = program.iter();
    let mut command = Command::new(words.next().map_or(OsString::new(), OsString::clone));
    command.args(words);
    command
}

/// Says why a program could not be started, and returns the exit code.
pub(crate) fn not_started(program: &[OsString], error: &io::Error) -> u8 {
    let name = program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    say(format!("`{}` cannot be run: {error}", visible(&name)));
    exit::of_start(error)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, set_parent_process_death_signal};
    use tokio::signal::unix::{SignalKind, signal};

    use super::*;
    use crate::gate::pass;
    use crate::signals::{Signals, Terminal};
    use crate::suspension::Suspension;
    use crate::tree::Tree;

    const WARDEN: &str = "__warden";
    const EXEC: &str = "__exec";

    /// The command, behind a warden.
    pub(crate) fn command(program: &[OsString], gate: &Gate) -> Command {
        again(WARDEN, gate, program)
    }

    /// Takes the step that `arguments` name, if any, and returns the exit code.
    pub(crate) fn step(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
        let step = arguments.nth(1)?;
        let step: fn(Pid, &str, &[OsString]) -> io::Result<u8> = match step.to_str()? {
            WARDEN => warden,
            EXEC => exec,
            _ => return None,
        };
        let parent = arguments.next()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let gate = arguments.next()?.into_string().ok()?;
        let program: Vec<_> = arguments.collect();
        let outcome = step(parent, &gate, &program);
        Some(outcome.unwrap_or_else(|error| not_started(&program, &error)))
    }

    /// This program once more, even if its file was replaced meanwhile.
    fn again(step: &str, gate: &Gate, program: &[OsString]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lockkit").arg(step).arg(getpid().to_string());
        command.arg(gate.address()).args(program);
        command
    }

    fn warden(parent: Pid, gate: &str, program: &[OsString]) -> io::Result<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let terminal = if getpgrp() == getpid() { Terminal::Apart } else { Terminal::Shared };
            // Lives through signals that are meant for the command.
            let mut caught = Signals::catch(Terminal::Shared)?;
            let mut suspension = Suspension::catch(terminal, parent)?;
            // This signal is harmless to a process that runs, and wakes one that is stopped.
            let mut woken = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
            set_parent_process_death_signal(Some(Signal::CONT))?;
            pass(parent, gate)?;
            if getppid() != Some(parent) {
                return Ok(exit::LOST);
            }
            // There is no command yet that could have a say in the matter.
            if let Some(signal) = caught.arrived_end().await {
                return Ok(exit::of_signal(signal));
            }
            // In the group of the warden: its own, or that of the terminal.
            let mut gate = Gate::new()?;
            let mut tree = Tree::start(again(EXEC, &gate, program), Terminal::Shared, &caught)?;
            // Only this process may have got what came before the other was there. If the other got
            // it, too, the other is gone.
            while let Some(signal) = caught.arrived().await {
                tree.signal(signal);
            }
            // To start it has taken a while.
            if getppid() != Some(parent) {
                return Ok(end_alone(tree).await);
            }
            gate.open();
            loop {
                tokio::select! {
                    biased;
                    _ = woken.recv() => {
                        if getppid() != Some(parent) {
                            return Ok(end_alone(tree).await);
                        }
                        suspension.end(&tree);
                    }
                    () = suspension.due() => suspension.stop(&tree),
                    signal = caught.next() => {
                        // What is sent to the group misses a command that has left it. All else
                        // `lockkit` sends to each process.
                        let was_for_group =
                            terminal == Terminal::Apart || terminal.delivers(signal, parent);
                        if was_for_group && signal != Signal::CONT {
                            tree.signal_if_left(signal);
                        }
                    }
                    status = tree.ended() => {
                        // When `lockkit` is killed while it is stopped, the kernel hangs up the group
                        // that nobody would continue. The command may end of that before this process
                        // is woken.
                        if getppid() != Some(parent) {
                            return Ok(end_alone(tree).await);
                        }
                        // What the command leaves behind goes on, and nobody else knows of it.
                        suspension.end(&tree);
                        return Ok(exit::of_status(status?));
                    }
                }
            }
        })
    }

    /// `lockkit` is gone. Nobody is left to tell about processes that cannot be killed.
    async fn end_alone(mut tree: Tree) -> u8 {
        _ = tree.kill().await;
        exit::LOST
    }

    fn exec(parent: Pid, gate: &str, program: &[OsString]) -> io::Result<u8> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        pass(parent, gate)?;
        // The warden may have ended before the signal was set.
        if getppid() != Some(parent) {
            return Ok(exit::LOST);
        }
        Err(plain(program).exec())
    }
}
