use std::fs::{self, File, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use crate::backend::find_program;
use crate::port::free_port;
use crate::process::{Process, User, Watchdog};
use crate::{Server, Unavailable};

/// A PgBouncer in front of a [`POSTGRES`](crate::POSTGRES). Killed, and its folder removed, when it
/// is dropped or when this process ends in whatever way.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    carries_prepared_statements: bool,
    /// Ends before the watchdog, which takes the folder along.
    _process: Process,
    _watchdog: Watchdog,
}

/// For how long PgBouncer gives a client a session of the server.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For as long as the client is connected.
    Session,
    /// For a transaction.
    Transaction,
}

impl PgBouncer {
    /// Starts one. Whoever calls itself `postgres` gets in.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing, which goes with `postgres` in `LOCKKIT_REQUIRE`,
    /// or does not come up.
    pub fn start(upstream: &Server, mode: PoolMode) -> Result<PgBouncer, Unavailable> {
        const PROGRAM: &str = "pgbouncer";
        let folders = vec!["/usr/sbin".into()];
        let program = find_program(PROGRAM, folders, |_| true)
            .ok_or(Unavailable::Missing { backend: "postgres", programs: &[PROGRAM] })?;
        let failed = |error: io::Error| Unavailable::Failed {
            backend: PROGRAM,
            reason: error.to_string(),
            log: String::new(),
        };
        Self::launch(&program, upstream, mode).map_err(failed)
    }

    /// Where the database of that name is reached through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Whether what one session of the server has prepared is known in all: by 1.21 and later.
    pub fn carries_prepared_statements(&self) -> bool {
        self.carries_prepared_statements
    }

    fn launch(program: &Path, upstream: &Server, mode: PoolMode) -> io::Result<PgBouncer> {
        let (watchdog, folder) = Watchdog::with_folder()?;
        let port = free_port()?;
        let carries_prepared_statements = version(program)? >= (1, 21);
        // An earlier one refuses a setting that it does not know.
        let more = if carries_prepared_statements { "max_prepared_statements = 100\n" } else { "" };
        let settings = write_settings(&folder, port, upstream.port(), mode, more)?;
        let user = match geteuid().is_root() {
            true => Some(User::instead_of_root()?),
            false => None,
        };
        if let Some(User { id, group }) = user {
            fs::set_permissions(&folder, Permissions::from_mode(0o711))?;
            for file in fs::read_dir(&folder)? {
                chown(file?.path(), Some(id), Some(group))?;
            }
        }
        let log = File::create(folder.join("log"))?;
        let mut process = watchdog.run(program, [settings], [], user, Signal::KILL, log)?;
        wait_until_ready(&mut process, port)?;
        Ok(PgBouncer { port, carries_prepared_statements, _process: process, _watchdog: watchdog })
    }
}

/// Major and minor.
fn version(program: &Path) -> io::Result<(u32, u32)> {
    let output = Command::new(program).arg("--version").output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = || {
        let mut numbers = said.lines().next()?.strip_prefix("PgBouncer ")?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    numbers().ok_or_else(|| io::Error::other(format!("it has no version: {said}")))
}

fn write_settings(
    folder: &Path,
    port: u16,
    upstream: u16,
    mode: PoolMode,
    more: &str,
) -> io::Result<PathBuf> {
    let users = folder.join("users");
    fs::write(&users, "\"postgres\" \"\"\n")?;
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
    };
    let settings = folder.join("settings");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={upstream}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {}\npool_mode = {mode}\n{more}",
        users.display()
    );
    fs::write(&settings, text)?;
    Ok(settings)
}

fn wait_until_ready(process: &mut Process, port: u16) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    const PAUSE: Duration = Duration::from_millis(2);
    let (addr, started) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Instant::now());
    loop {
        match TcpStream::connect(addr) {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
        if let Some(status) = process.exit_status()? {
            return Err(io::Error::other(format!("its process ended with {status}")));
        }
    }
}
