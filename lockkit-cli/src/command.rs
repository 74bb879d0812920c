//! A command that runs under a lock: it gets the signals, and ends before the lock does.

use std::io;
use std::time::Duration;

use lockkit::Hold;
use lockkit::driver::Clock;
use rustix::process::{Signal, getpid};
use tokio::select;

use crate::exit;
use crate::gate::Gate;
use crate::limits::Limits;
use crate::report::say;
use crate::signals::{self, ASK_FOR_THE_END, ASK_TO_STOP, Signals, Terminal};
#[cfg(target_os = "linux")]
use crate::suspension;
use crate::tree::Tree;

/// How the command ended.
pub(crate) enum End {
    /// With an exit code.
    ByItself(u8),
    /// The same, after a signal that asked for it.
    AsTold(u8),
    WithTheLock,
}

/// Passes signals on until the command has ended, one way or the other.
pub(crate) async fn watch(
    tree: &mut Tree,
    gate: &mut Gate,
    hold: &Hold,
    limits: Limits,
    terminal: Terminal,
    signals: &mut Signals,
) -> io::Result<End> {
    let mut told = false;
    // The terminal has sent nobody else what came before there was a command.
    while let Some(signal) = signals.arrived().await {
        told |= pass_on(tree, signal, Terminal::Apart).await;
    }
    gate.open();
    loop {
        select! {
            biased;
            // Before anything else, since this process may have been stopped meanwhile.
            () = hold.ended() => break,
            status = tree.ended() => {
                let status = status?;
                if status.signaled() && cfg!(target_os = "linux") {
                    // Somebody killed the warden, and the kernel killed only the command with it.
                    // Elsewhere this is the command, and what it leaves goes on.
                    kill(tree).await;
                }
                // By the clock: after a stop, a timer may be late.
                if !hold.is_held() {
                    break;
                }
                let code = exit::of_status(status);
                // A terminal, or somebody else, may have told the command first. Judged by the
                // code: the warden has no other word for a signal, and neither has a program that
                // catches one.
                told |= ASK_FOR_THE_END.iter().any(|end| code == exit::of_signal(*end));
                while let Some(signal) = signals.arrived().await {
                    told |= ASK_FOR_THE_END.contains(&signal);
                }
                return Ok(if told { End::AsTold(code) } else { End::ByItself(code) });
            }
            () = hold.ends_within(limits.grace) => break,
            signal = signals.next() => told |= pass_on(tree, signal, terminal).await,
        }
    }
    end(tree, hold, limits).await;
    Ok(End::WithTheLock)
}

/// Passes a signal on to the command, unless it has it already, and says whether it asks for the
/// end.
async fn pass_on(tree: &Tree, signal: Signal, terminal: Terminal) -> bool {
    match signal {
        // The command first, and all of it: it must not run while nobody watches.
        signal if ASK_TO_STOP.contains(&signal) => {
            tree.signal_all(Signal::STOP);
            #[cfg(target_os = "linux")]
            suspension::stop_rest(tree).await;
            signals::stop();
        }
        signal if terminal.delivers(signal, getpid()) => (),
        // All that was stopped: nobody else may be left to continue it.
        Signal::CONT => tree.signal_all(signal),
        signal => tree.signal(signal),
    }
    ASK_FOR_THE_END.contains(&signal)
}

/// Ends the command, and everything below it, before the hold ends.
async fn end(tree: &mut Tree, hold: &Hold, limits: Limits) {
    let name = hold.name();
    let left = hold.valid_for().unwrap_or_default();
    if left > limits.reserve {
        tree.signal(Signal::TERM);
        // What is stopped would not hear of it otherwise.
        tree.signal_all(Signal::CONT);
        say(format!("lock `{name}` ends in {left:.1?}: ending the command"));
        select! {
            biased;
            () = tree.all_ended() => return,
            () = hold.ended() => (),
            () = until(left - limits.reserve) => (),
        }
    }
    let why = if hold.is_held() { "is about to end" } else { "is lost" };
    // At once, before anything is said.
    tree.signal(Signal::KILL);
    say(format!("lock `{name}` {why}: killing what still runs"));
    kill(tree).await;
}

async fn kill(tree: &mut Tree) {
    if let Err(left) = tree.kill().await {
        say(format!("{left} processes of the command cannot be killed"));
    }
}

/// Sleeps on the clock of leases, which goes on while the machine is suspended.
async fn until(later: Duration) {
    let clock = Clock::system();
    clock.sleep_until(clock.now() + later).await;
}
