use std::env;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;

use crate::clock::SteppedClock;
use crate::ensemble::Joining;
use crate::process::User;
use crate::server::Wall;
use crate::{Ensemble, Server};

/// A kind of server that tests need, for example [`REDIS`](crate::REDIS): which programs can play
/// it and how they are started.
#[derive(Debug)]
pub struct Backend {
    pub(crate) id: &'static str,
    /// The variable that names a server to be shared instead of starting one.
    pub(crate) url_variable: &'static str,
    /// The first that is found in `PATH` is taken.
    pub(crate) programs: &'static [&'static str],
    /// Where the programs are that are not in `PATH`.
    pub(crate) folders: fn() -> Vec<PathBuf>,
    /// Whether the program of that name is the right one.
    pub(crate) is_it: fn(program: &Path) -> bool,
    /// Makes what the program needs to be in its folder, which is empty.
    pub(crate) prepare: fn(program: &Path, data: &Path, user: Option<User>) -> io::Result<()>,
    /// Whether the program does not run as root.
    pub(crate) refuses_root: bool,
    /// What ends the program at once, along with the processes that it has started.
    pub(crate) kill: Signal,
    /// What makes the program serve on that port of 127.0.0.1, in the foreground, with its data in
    /// that folder and no durability. May write what it needs to its folder.
    pub(crate) arguments: fn(port: u16, data: &Path) -> io::Result<Vec<String>>,
    /// Whether the process with that id, and with its data in that folder, answers on that port.
    pub(crate) is_ready: fn(port: u16, pid: u32, data: &Path) -> io::Result<bool>,
    pub(crate) url: fn(port: u16) -> String,
    /// How several of these servers make one backend, if they can.
    pub(crate) ensemble: Option<Joining>,
    /// The server that this process started for whoever calls [`Backend::url`].
    pub(crate) shared: OnceLock<Result<Server, Unavailable>>,
}

/// Why a test has no server.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unavailable {
    /// No program that can play the backend is in `PATH`: a reason to skip.
    #[error("no {} in PATH: `scripts/test {backend}` installs it", programs.join(" or "))]
    #[non_exhaustive]
    Missing {
        /// Which backend.
        backend: &'static str,
        /// The programs that were looked for.
        programs: &'static [&'static str],
    },
    /// The system cannot do it: a reason to skip.
    #[error("{what} needs Linux")]
    #[non_exhaustive]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The program is there but does not come up: never a reason to skip.
    #[error("{backend} did not come up: {reason}\n--- end of its log ---\n{log}")]
    #[non_exhaustive]
    Failed {
        /// Which backend.
        backend: &'static str,
        /// What was seen.
        reason: String,
        /// The last lines of the server's log.
        log: String,
    },
}

impl Backend {
    /// The backend's name in `LOCKKIT_REQUIRE` and on command lines, for example `redis`.
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// The name of the variable that gives [`Backend::url`] a server, for example
    /// `LOCKKIT_TEST_REDIS_URL`.
    pub fn url_variable(&self) -> &'static str {
        self.url_variable
    }

    /// The URL of a server that is shared with other tests: the one that `LOCKKIT_TEST_<ID>_URL`
    /// names, or else one that this process starts at the first call and that ends with the
    /// process.
    ///
    /// A test that uses it takes names of its own and neither stops nor reconfigures the server.
    ///
    /// # Errors
    /// [`Unavailable`] if no server is named and none can be started.
    pub fn url(&'static self) -> Result<String, Unavailable> {
        match env::var(self.url_variable) {
            Ok(url) if !url.is_empty() => Ok(url),
            _ => self
                .shared
                .get_or_init(|| self.start())
                .as_ref()
                .map_or_else(|unavailable| Err(unavailable.clone()), |server| Ok(server.url())),
        }
    }

    /// Starts a server for the caller alone, without persistence. It ends when it is dropped.
    ///
    /// Blocks until the server answers (Redis: some 20 ms, etcd: some 200, PostgreSQL: some 600,
    /// MariaDB: a second or two). It blocks on purpose, so that it works under a paused clock, too.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start(&'static self) -> Result<Server, Unavailable> {
        self.start_with(&[])
    }

    /// Like [`Backend::start`], with more arguments, which override the usual ones. `{port}` in
    /// them is the server's port.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start_with(&'static self, arguments: &[&str]) -> Result<Server, Unavailable> {
        let arguments = arguments.iter().map(|&argument| argument.into()).collect();
        Server::start(self, self.program()?, arguments, Wall::True)
    }

    /// Like [`Backend::start`], with a wall clock that can be [stepped](Server::step_clock). Not
    /// all programs take their time from the C library, which is where it is stepped: MariaDB and
    /// PostgreSQL do.
    ///
    /// # Errors
    /// [`Unavailable`] if the program or a C compiler is missing, the program does not come up, or
    /// this is not Linux.
    pub fn start_with_clock(&'static self) -> Result<Server, Unavailable> {
        const COMPILERS: &[&str] = &[SteppedClock::COMPILER];
        if cfg!(not(target_os = "linux")) {
            return Err(Unavailable::Unsupported { what: "a clock that can be stepped" });
        }
        if find_program(SteppedClock::COMPILER, Vec::new(), |_| true).is_none() {
            return Err(Unavailable::Missing { backend: self.id, programs: COMPILERS });
        }
        Server::start(self, self.program()?, Vec::new(), Wall::Stepped)
    }

    /// Starts an ensemble of that many members for the caller alone. It ends when it is dropped.
    ///
    /// Blocks until all members serve.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing, if a member does not come up, or if the backend
    /// has no ensembles.
    pub fn start_ensemble(&'static self, members: usize) -> Result<Ensemble, Unavailable> {
        let program = self.program()?;
        let Some(joining) = self.ensemble else {
            return Err(self.failed(&"it has no ensembles", String::new()));
        };
        Ensemble::start(self, joining, &program, members)
    }

    pub(crate) fn failed(&self, reason: &dyn fmt::Display, log: String) -> Unavailable {
        Unavailable::Failed { backend: self.id, reason: reason.to_string(), log }
    }

    pub(crate) fn program(&self) -> Result<PathBuf, Unavailable> {
        self.programs
            .iter()
            .find_map(|name| find_program(name, (self.folders)(), self.is_it))
            .ok_or(Unavailable::Missing { backend: self.id, programs: self.programs })
    }
}

pub(crate) fn find_program(
    name: &str,
    folders: Vec<PathBuf>,
    is_it: fn(&Path) -> bool,
) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(folders);
    folders.map(|folder| folder.join(name)).find(|path| is_program(path) && is_it(path))
}
