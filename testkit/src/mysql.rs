use std::env;
use std::fs;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::Backend;
use crate::process::User;

/// One MariaDB. `root` gets in from this machine without a password.
pub static MARIADB: Backend = Backend {
    id: "mariadb",
    url_variable: "LOCKKIT_TEST_MARIADB_URL",
    programs: &["mariadbd"],
    folders: || vec!["/usr/sbin".into(), "/usr/libexec".into()],
    is_it: |_| true,
    prepare: prepare_mariadb,
    refuses_root: false,
    kill: Signal::KILL,
    arguments: arguments_of_mariadb,
    is_ready,
    url: |port| format!("mariadb://root@127.0.0.1:{port}/shop"),
    ensemble: None,
    shared: OnceLock::new(),
};

/// One MySQL. `root` gets in from this machine without a password.
pub static MYSQL: Backend = Backend {
    id: "mysql",
    url_variable: "LOCKKIT_TEST_MYSQL_URL",
    programs: &["mysqld"],
    is_it: is_no_mariadb,
    folders: Vec::new,
    prepare: prepare_mysql,
    refuses_root: false,
    kill: Signal::KILL,
    arguments: arguments_of_mysql,
    is_ready,
    url: |port| format!("mysql://root@127.0.0.1:{port}/shop"),
    ensemble: None,
    shared: OnceLock::new(),
};

/// [`MARIADB`]; or [`MYSQL`], where tests are given one.
pub fn mariadb_or_mysql() -> &'static Backend {
    match env::var_os(MYSQL.url_variable) {
        Some(_) => &MYSQL,
        None => &MARIADB,
    }
}

const FIRST_STATEMENTS: &str = "\
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS shop;
";

/// MariaDB has a link of this name to itself.
fn is_no_mariadb(program: &Path) -> bool {
    let real = program.canonicalize().unwrap_or_default();
    real.file_name().is_some_and(|name| name != "mariadbd")
}

fn prepare_mariadb(_: &Path, data: &Path, _: Option<User>) -> io::Result<()> {
    let mut command = Command::new("mariadb-install-db");
    command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    command.arg(format!("--datadir={}", data.display())).args(as_whom());
    // This runs a server, too, which removes what it takes for its own remains.
    command.arg(format!("--tmpdir={}", data.display()));
    make(command, data)
}

fn prepare_mysql(program: &Path, data: &Path, _: Option<User>) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(["--no-defaults", "--initialize-insecure"]);
    command.arg(format!("--datadir={}", data.display())).args(as_whom());
    make(command, data)
}

fn make(mut command: Command, data: &Path) -> io::Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let program = command.get_program().display().to_string();
        return Err(io::Error::other(format!("{program} ended with {}: {said}", output.status)));
    }
    fs::write(data.join("first.sql"), FIRST_STATEMENTS)
}

fn arguments_of_mariadb(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let mut arguments = arguments(port, data)?;
    // From 11.4 on it makes a certificate for itself, and a proxy would not see what is said.
    arguments.push("--skip-ssl".into());
    Ok(arguments)
}

fn arguments_of_mysql(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let own = ["--mysqlx=OFF", "--secure-file-priv=NULL"].map(String::from);
    Ok(arguments(port, data)?.into_iter().chain(own).collect())
}

fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let data = data.display();
    let settings = [
        "--no-defaults".into(), // has to be the first
        format!("--datadir={data}"),
        format!("--init-file={data}/first.sql"),
        format!("--pid-file={data}/pid"),
        format!("--socket={data}/socket"),
        // A server that starts removes what it takes for its own remains, even its neighbours'.
        format!("--tmpdir={data}"),
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        "--max-connections=300".into(),
        "--skip-log-bin".into(),
        "--skip-name-resolve".into(),
        "--performance-schema=OFF".into(),
        "--innodb-buffer-pool-size=32M".into(),
    ];
    Ok(settings.into_iter().chain(as_whom()).collect())
}

/// The servers refuse to be root unless they are told to.
fn as_whom() -> Option<String> {
    geteuid().is_root().then(|| "--user=root".into())
}

/// Its own note tells the process id, and its greeting that it takes connections.
fn is_ready(port: u16, pid: u32, data: &Path) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(1);
    match fs::read_to_string(data.join("pid")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        note => {
            if note?.trim() != pid.to_string() {
                return Ok(false);
            }
        }
    }
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    Ok(header[4] == 10) // the version of the protocol
}
