//! What /proc tells of processes.

use std::{fs, io};

use rustix::process::{Pid, getpid};

/// A process as it is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// `None` where it is not in the same container.
    pub(crate) parent: Option<Pid>,
    /// A letter: proc(5) has a list of them.
    state: char,
}

/// Whether /proc has the numbers that this process knows others by: those of its own container.
pub(crate) fn are_ours() -> io::Result<bool> {
    let own = fs::read_link("/proc/self")?;
    Ok(own.to_str().and_then(number) == Some(getpid()))
}

/// Every process that is seen.
pub(crate) fn all() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(number) else { continue };
        // It may have ended by now.
        processes.extend(look(pid));
    }
    Ok(processes)
}

/// One process; `None` if it is not there, or not seen.
pub(crate) fn look(pid: Pid) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // `PID (NAME) STATE PARENT ...`, where the name can have anything in it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut rest = rest.split_whitespace();
    let state = rest.next()?.parse().ok()?;
    Some(Process { pid, parent: rest.next().and_then(number), state })
}

fn number(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

impl Process {
    /// Whether a signal has stopped it.
    pub(crate) fn is_stopped(self) -> bool {
        self.state == 'T'
    }

    /// Whether it goes on, or will when what it waits for is there.
    pub(crate) fn runs(self) -> bool {
        // By a signal or a debugger, or it has ended.
        !matches!(self.state, 'T' | 't' | 'Z' | 'X')
    }
}
