use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Keeps a folder and the process that runs in it from outliving this process, however this one
/// ends.
///
/// A small shell reads a pipe whose other end is held only by this process and, until it has told
/// its id, the child. When the pipe ends, the shell ends the child and removes the folder. That
/// needs neither `unsafe` code nor a facility of Linux.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    /// `None` only while this is dropped.
    pipe: Option<PipeWriter>,
}

/// A child process that a [`Watchdog`] watches. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pipe: PipeWriter,
    kill: Signal,
}

/// The user that a program runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

impl User {
    /// For programs that do not run as root.
    pub(crate) fn instead_of_root() -> io::Result<Self> {
        let users = fs::read_to_string("/etc/passwd")?;
        let mut users = users.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let is_it = fields.next()? == "nobody";
            let (id, group) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            is_it.then_some(Self { id, group })
        });
        users.next().ok_or_else(|| io::Error::other("there is no user `nobody` to run it"))
    }

    pub(crate) fn is_to_run(self, command: &mut Command) {
        command.uid(self.id).gid(self.group);
    }
}

/// `$1` is the folder. A line is the id of the child and the signal that ends it, or empty when
/// there no longer is a child. A child that is not killed outright has some seconds to clear up: a
/// PostgreSQL gives back memory that would otherwise stay until the machine is started anew.
const WATCH: &str = r#"
pid= signal=
while read -r line; do
  pid=${line% *} signal=${line#* }
done
if [ -n "$pid" ]; then
  kill "-$signal" "-$pid"
  kill -CONT "-$pid"
  left=50
  while [ "$signal" != 9 ] && [ "$left" -gt 0 ] && kill -0 "-$pid"; do
    sleep 0.1
    left=$((left - 1))
  done
  [ "$left" -gt 0 ] || kill -9 "-$pid"
fi
rm -rf -- "$1"
"#;

/// `$1` is the signal, and the program follows. Standard input is the watchdog's pipe: it is given
/// up only after the id is told, so that there is no moment at which the child lives and the
/// watchdog cannot know of it.
const RUN: &str = r#"echo "$$ $1" >&0 && shift && exec "$@" </dev/null"#;

impl Watchdog {
    /// Watches over a folder of its own, which it makes.
    pub(crate) fn with_folder() -> io::Result<(Watchdog, PathBuf)> {
        let folder = tempfile::Builder::new().prefix("lockkit-").tempdir()?;
        let watchdog = Watchdog::start(folder.path())?;
        Ok((watchdog, folder.keep()))
    }

    fn start(folder: &Path) -> io::Result<Watchdog> {
        let (reader, writer) = io::pipe()?;
        let shell = shell(WATCH)
            .arg(folder)
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Watchdog { shell, pipe: Some(writer) })
    }

    /// Starts a program, one at a time.
    pub(crate) fn run(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
        user: Option<User>,
        kill: Signal,
        log: File,
    ) -> io::Result<Process> {
        let pipe = self.pipe.as_ref().ok_or_else(|| io::Error::other("the watchdog has gone"))?;
        let pipe = pipe.try_clone()?;
        let mut command = shell(RUN);
        command.arg(kill.as_raw().to_string()).arg(program).args(arguments).envs(environment);
        command.stdin(pipe.try_clone()?).stdout(log.try_clone()?).stderr(log);
        if let Some(user) = user {
            user.is_to_run(&mut command);
        }
        Ok(Process { child: command.spawn()?, pipe, kill })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.pipe = None;
        // It removes the folder and ends.
        let _ = self.shell.wait();
    }
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the child ended, if it has.
    fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until the child is ready, as `is_ready` tells of the process with that id. It may fail
    /// until then: so does who asks a server that is coming up.
    ///
    /// # Errors
    ///
    /// If the child ends, or is not ready after two minutes.
    pub(crate) fn wait_until(
        &mut self,
        mut is_ready: impl FnMut(u32) -> io::Result<bool>,
    ) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(120);
        const PAUSE: Duration = Duration::from_millis(2);
        let started = Instant::now();
        loop {
            let answered = is_ready(self.id());
            if let Some(status) = self.exit_status()? {
                return Err(io::Error::other(format!("its process ended with {status}")));
            }
            match answered {
                Ok(true) => return Ok(()),
                _ if started.elapsed() < PATIENCE => thread::sleep(PAUSE),
                Ok(false) => {
                    return Err(io::Error::other(format!("it is not ready after {PATIENCE:?}")));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Freezes the child (SIGSTOP). When this returns, the child no longer runs.
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
    /// The watchdog is told before the child is reaped, because afterwards its id may be another's.
    fn drop(&mut self) {
        // None of these can fail in a way that matters: the child has not been reaped.
        let _ = self.signal(self.kill);
        let _ = self.signal(Signal::CONT);
        let _ = writeln!(self.pipe);
        let _ = self.child.wait();
    }
}

/// A shell in a process group of its own: what a terminal sends to the tests does not end it.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).process_group(0);
    command
}
