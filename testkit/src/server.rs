use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::geteuid;

use crate::clock::SteppedClock;
use crate::ensemble::Seat;
use crate::port::at_free_port;
use crate::process::{Process, User, Watchdog};
use crate::{Backend, Unavailable};

/// A private server on a loopback port, made by [`Backend::start`]. It is killed, and its folder
/// removed, when it is dropped or when this process ends, in whatever way.
pub struct Server {
    backend: &'static Backend,
    program: PathBuf,
    arguments: Vec<String>,
    port: u16,
    /// `None` while it is killed. Ends before the watchdog, which takes the folder along.
    process: Mutex<Option<Process>>,
    /// Its place, if it is a member of an ensemble.
    seat: Option<Seat>,
    watchdog: Watchdog,
    folder: PathBuf,
    clock: Option<SteppedClock>,
}

/// Which wall clock a server goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wall {
    True,
    Stepped,
}

impl Server {
    /// Where it serves, even while it is killed.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The port at which it serves, even while it is killed.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server itself.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// The URL of this server for whoever comes through a [`Proxy`](crate::Proxy) at that address.
    pub fn url_at(&self, proxy: SocketAddr) -> String {
        (self.backend.url)(proxy.port())
    }

    /// The id of its process, unless it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    /// The folder with its data.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Copies a file into that folder, for the server alone to read, and returns where it is.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn add_file(&self, from: &Path, name: &str) -> io::Result<PathBuf> {
        let path = self.data().join(name);
        fs::copy(from, &path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        if let Some(User { id, group }) = self.user()? {
            chown(&path, Some(id), Some(group))?;
        }
        Ok(path)
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path())
    }

    /// Kills the server and waits until it is gone. Does nothing if it is gone already. The signal
    /// is SIGKILL; for PostgreSQL, which has children, it is SIGQUIT, which it does not survive in
    /// better order.
    pub fn kill(&self) {
        drop(self.process().take());
    }

    /// Freezes the server (SIGSTOP): its connections stay open and nothing is answered. This does
    /// not freeze the children of PostgreSQL, which go on answering on the connections that there
    /// are.
    ///
    /// # Errors
    /// If it is killed, or cannot be signalled.
    pub fn stop(&self) -> io::Result<()> {
        self.process().as_ref().ok_or_else(killed)?.stop()
    }

    /// Lets a stopped server go on (SIGCONT).
    ///
    /// # Errors
    /// If it is killed, or cannot be signalled.
    pub fn cont(&self) -> io::Result<()> {
        self.process().as_ref().ok_or_else(killed)?.cont()
    }

    /// Kills the server if it runs and starts it on the same port, with the data that it had
    /// written to its folder. By default Redis writes none; with `--appendonly yes` it writes each
    /// change, as PostgreSQL and etcd do.
    ///
    /// # Errors
    /// [`Unavailable::Failed`] if it does not come up.
    pub fn restart(&self) -> Result<(), Unavailable> {
        let mut process = self.process();
        *process = None;
        *process = Some(self.launch()?);
        Ok(())
    }

    /// Like [`Server::restart`], but with all its data gone.
    ///
    /// # Errors
    /// [`Unavailable::Failed`] if it does not come up.
    pub fn restart_empty(&self) -> Result<(), Unavailable> {
        self.kill();
        fs::remove_dir_all(self.data()).map_err(|error| self.failed(&error))?;
        self.restart()
    }

    /// Sets the server's wall clock that many seconds ahead of the true time, or behind it if
    /// negative. The server must have been [started with one](Backend::start_with_clock).
    ///
    /// # Errors
    /// If it has none, or cannot be reached.
    pub fn step_clock(&self, seconds: i64) -> io::Result<()> {
        let clock = self.clock.as_ref();
        let clock = clock.ok_or_else(|| io::Error::other("the server goes by the true time"))?;
        clock.step(seconds * 1_000_000_000)
    }

    pub(crate) fn start(
        backend: &'static Backend,
        program: PathBuf,
        arguments: Vec<String>,
        wall: Wall,
    ) -> Result<Server, Unavailable> {
        let failed = |error: io::Error| backend.failed(&error, String::new());
        let mut server = Server::at_rest(backend, program, arguments, None).map_err(failed)?;
        if wall == Wall::Stepped {
            server.clock = Some(SteppedClock::in_folder(&server.folder).map_err(failed)?);
        }
        at_free_port(failed, |port| {
            server.port = port;
            server.restart()
        })?;
        Ok(server)
    }

    /// A member of an ensemble, which is yet to be [begun](Server::begin).
    pub(crate) fn member(
        backend: &'static Backend,
        program: PathBuf,
        seat: Seat,
    ) -> io::Result<Server> {
        let port = seat.port();
        let server = Server::at_rest(backend, program, Vec::new(), Some(seat))?;
        Ok(Server { port, ..server })
    }

    fn at_rest(
        backend: &'static Backend,
        program: PathBuf,
        arguments: Vec<String>,
        seat: Option<Seat>,
    ) -> io::Result<Server> {
        let (watchdog, folder) = Watchdog::with_folder()?;
        let (process, clock) = (Mutex::new(None), None);
        Ok(Server { backend, program, arguments, port: 0, process, seat, watchdog, folder, clock })
    }

    /// Starts the process, and leaves it to [`settle`](Server::settle) to wait for it.
    pub(crate) fn begin(&self) -> Result<(), Unavailable> {
        let process = self.spawn().map_err(|error| self.failed(&error))?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Waits until a server that was begun is ready.
    pub(crate) fn settle(&self) -> Result<(), Unavailable> {
        let mut process = self.process();
        let process = process.as_mut().ok_or_else(|| self.failed(&killed()))?;
        self.wait_until_ready(process).map_err(|error| self.failed(&error))
    }

    fn launch(&self) -> Result<Process, Unavailable> {
        self.try_launch().map_err(|error| self.failed(&error))
    }

    fn try_launch(&self) -> io::Result<Process> {
        let mut process = self.spawn()?;
        self.wait_until_ready(&mut process)?;
        Ok(process)
    }

    fn spawn(&self) -> io::Result<Process> {
        let (data, user) = (self.data(), self.user()?);
        fs::create_dir_all(&data)?;
        if fs::read_dir(&data)?.next().is_none() {
            if let Some(User { id, group }) = user {
                fs::set_permissions(&self.folder, Permissions::from_mode(0o711))?;
                chown(&data, Some(id), Some(group))?;
            }
            (self.backend.prepare)(&self.program, &data, user)?;
        }
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let arguments = match &self.seat {
            Some(seat) => seat.arguments(&data)?,
            None => (self.backend.arguments)(self.port, &data)?,
        };
        let port = self.port.to_string();
        let own = self.arguments.iter().map(|argument| argument.replace("{port}", &port));
        let arguments = arguments.into_iter().chain(own);
        let environment = self.clock.iter().flat_map(SteppedClock::environment);
        let program = &self.program;
        self.watchdog.run(program, arguments, environment, user, self.backend.kill, log)
    }

    fn wait_until_ready(&self, process: &mut Process) -> io::Result<()> {
        process.wait_until(|pid| (self.backend.is_ready)(self.port, pid, &self.data()))
    }

    /// The user that the server runs as, if not that of this process.
    fn user(&self) -> io::Result<Option<User>> {
        match self.backend.refuses_root && geteuid().is_root() {
            true => User::instead_of_root().map(Some),
            false => Ok(None),
        }
    }

    fn failed(&self, error: &io::Error) -> Unavailable {
        let reason = format_args!("{} at port {}: {error}", self.program.display(), self.port);
        self.backend.failed(&reason, self.log_tail())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("backend", &self.backend.id)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn killed() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the server is killed")
}

fn tail(log: &Path) -> String {
    const LINES: usize = 30;
    let text = match File::open(log).and_then(io::read_to_string) {
        Ok(text) => text,
        Err(error) => return format!("(no log: {error})"),
    };
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
