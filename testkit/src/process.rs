use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// A child process that does not outlive this one, however this one ends.
///
/// A watchdog, a small shell, reads a pipe of which only this process and, until it has told its id,
/// the child hold the other end. When the pipe ends, this process is gone, and the watchdog kills
/// the child and removes its folder. That needs neither `unsafe` code nor a facility of Linux.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
    /// Never written to. To close it is what the watchdog waits for.
    _pipe: OwnedFd,
}

/// `$1`: the folder that goes with the child.
const WATCHDOG: &str = r#"
read -r pid || exit 0
while read -r _; do :; done
kill -9 "-$pid"
rm -rf -- "$1"
"#;

/// Standard input is the watchdog's pipe: given up only after the id is told, so that there is no
/// moment at which the child lives and the watchdog cannot know it.
const CHILD: &str = r#"echo $$ >&0 && exec "$@" </dev/null"#;

impl Process {
    /// Starts the program with `folder` as its own, which goes when this process does.
    pub(crate) fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        folder: &Path,
        log: File,
    ) -> io::Result<Process> {
        let mut watchdog = shell(WATCHDOG)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe: OwnedFd = match watchdog.stdin.take() {
            Some(pipe) => pipe.into(),
            None => return Err(io::Error::other("the watchdog has no pipe")),
        };
        let child = shell(CHILD)
            .arg(program)
            .args(arguments)
            .stdin(pipe.try_clone()?)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Process { child, watchdog, _pipe: pipe })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the child ended, if it has.
    pub(crate) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Freezes the child (SIGSTOP). When this returns, it runs no more.
    pub(crate) fn stop(&self) -> io::Result<()> {
        const TRIES: u32 = 5_000;
        self.signal(Signal::STOP)?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        for _ in 0..TRIES {
            if waitid(WaitId::Pid(Pid::from_child(&self.child)), stopped)?.is_some() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not stop"))
    }

    /// Lets a stopped child go on (SIGCONT).
    pub(crate) fn cont(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process_group(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Process {
    /// Kills the child (SIGKILL). The watchdog goes before the child is reaped, because afterwards
    /// the child's id may be somebody else's.
    fn drop(&mut self) {
        // Neither can fail in a way that matters: what is to be ended has not been reaped.
        let _ = self.signal(Signal::KILL);
        let _ = self.watchdog.kill().and_then(|()| self.watchdog.wait());
        let _ = self.child.wait();
    }
}

/// A shell in a process group of its own: what a terminal sends to the tests does not end it.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).process_group(0);
    command
}
