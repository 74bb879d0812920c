use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::backend::find_program;
use crate::port::at_free_port;
use crate::process::{Process, User, Watchdog};
use crate::{Server, Unavailable};

/// A PgBouncer in front of a [`POSTGRES`](crate::POSTGRES). It is killed, and its folder removed,
/// when it is dropped or when this process ends, in whatever way.
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

const PROGRAM: &str = "pgbouncer";

/// The file in its folder that has its process id.
const NOTE: &str = "pid";

impl PgBouncer {
    /// Starts one. Whoever uses the name `postgres` gets in.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing, which goes with `postgres` in `LOCKKIT_REQUIRE`,
    /// or does not come up.
    pub fn start(upstream: &Server, mode: PoolMode) -> Result<PgBouncer, Unavailable> {
        let program = Self::program()?;
        let failed = |error: io::Error| Unavailable::Failed {
            backend: PROGRAM,
            reason: error.to_string(),
            log: String::new(),
        };
        Self::launch(&program, upstream.port(), mode).map_err(failed)
    }

    fn program() -> Result<PathBuf, Unavailable> {
        let folders = vec!["/usr/sbin".into()];
        let found = find_program(PROGRAM, folders, |_| true);
        found.ok_or(Unavailable::Missing { backend: "postgres", programs: &[PROGRAM] })
    }

    /// Where the database of that name is reached through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Whether what one session of the server has prepared is known in all of them, as it is from
    /// 1.21 on.
    pub fn carries_prepared_statements(&self) -> bool {
        self.carries_prepared_statements
    }

    fn launch(program: &Path, upstream: u16, mode: PoolMode) -> io::Result<PgBouncer> {
        at_free_port(|error| error, |port| Self::launch_at(port, program, upstream, mode))
    }

    fn launch_at(
        port: u16,
        program: &Path,
        upstream: u16,
        mode: PoolMode,
    ) -> io::Result<PgBouncer> {
        let (watchdog, folder) = Watchdog::with_folder()?;
        let carries_prepared_statements = version(program)? >= (1, 21);
        // An earlier version refuses a setting that it does not know.
        let more = if carries_prepared_statements { "max_prepared_statements = 100\n" } else { "" };
        // It writes its note there.
        let data = folder.join("data");
        fs::create_dir(&data)?;
        let settings = write_settings(&data, port, upstream, mode, more)?;
        let user = match geteuid().is_root() {
            true => Some(User::instead_of_root()?),
            false => None,
        };
        if let Some(User { id, group }) = user {
            fs::set_permissions(&folder, Permissions::from_mode(0o711))?;
            chown(&data, Some(id), Some(group))?;
            for file in fs::read_dir(&data)? {
                chown(file?.path(), Some(id), Some(group))?;
            }
        }
        let log = File::create(folder.join("log"))?;
        let mut process = watchdog.run(program, [settings], [], user, Signal::KILL, log)?;
        process.wait_until(|pid| is_ready(pid, &data))?;
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
         auth_type = trust\nauth_file = {}\npool_mode = {mode}\napplication_name_add_host = 1\n\
         pidfile = {}\n{more}",
        users.display(),
        folder.join(NOTE).display()
    );
    fs::write(&settings, text)?;
    Ok(settings)
}

/// Its own note tells the process id, and is written once it listens: at the port there may be another
/// process.
fn is_ready(pid: u32, data: &Path) -> io::Result<bool> {
    match fs::read_to_string(data.join(NOTE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        note => Ok(note?.trim() == pid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::or_skip;

    /// No server is behind these: PgBouncer connects only when it is asked to.
    const NOBODY: u16 = 1;

    #[test]
    fn another_process_at_its_port_is_not_taken_for_it() {
        let Ok(program) = or_skip(PgBouncer::program()) else { return };
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let launched = PgBouncer::launch_at(port, &program, NOBODY, PoolMode::Session);
        let error = launched.unwrap_err().to_string();
        assert!(error.starts_with("its process ended with"), "{error}");
    }

    #[test]
    fn it_listens_once_it_is_there() {
        let Ok(program) = or_skip(PgBouncer::program()) else { return };
        let pooler = PgBouncer::launch(&program, NOBODY, PoolMode::Session).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, pooler.port)).unwrap();
    }
}
