use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;

use crate::Backend;
use crate::process::User;

/// One PostgreSQL. Whoever comes from this machine gets in without a password, except the role
/// `lockkit_password`, which tests make.
pub static POSTGRES: Backend = Backend {
    id: "postgres",
    url_variable: "LOCKKIT_TEST_POSTGRES_URL",
    programs: &["postgres"],
    folders,
    is_it: |_| true,
    prepare,
    refuses_root: true,
    kill: Signal::QUIT,
    arguments,
    is_ready,
    url: |port| format!("postgres://postgres@127.0.0.1:{port}/postgres"),
    ensemble: None,
    shared: OnceLock::new(),
};

const WHO_GETS_IN: &str = "\
host all lockkit_password 127.0.0.1/32 scram-sha-256
host all all              127.0.0.1/32 trust
host replication all      127.0.0.1/32 trust
";

/// Where systems keep the programs of each version: the newest first.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<(u32, PathBuf)> = [
        ("/usr/lib/postgresql", "", "bin"), // Debian
        ("/usr", "pgsql-", "bin"),          // Red Hat
        ("/usr/libexec", "postgresql", ""), // Alpine
        ("/opt/homebrew/opt", "postgresql@", "bin"),
        ("/usr/local/opt", "postgresql@", "bin"), // Homebrew on older machines
    ]
    .into_iter()
    .flat_map(|(parent, prefix, inner)| {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join(inner)))
        })
    })
    .collect();
    folders.sort_by(|one, other| other.cmp(one));
    folders.into_iter().map(|(_, folder)| folder).collect()
}

fn prepare(program: &Path, data: &Path, user: Option<User>) -> io::Result<()> {
    let mut command = Command::new(program.with_file_name("initdb"));
    command.args(["--username=postgres", "--encoding=UTF8", "--locale=C", "--auth=trust"]);
    command.args(["--no-sync", "--pgdata"]).arg(data);
    if let Some(user) = user {
        // It wants to see the folder that it begins in.
        user.is_to_run(command.current_dir("/"));
    }
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("initdb ended with {}: {said}", output.status)));
    }
    fs::write(data.join("pg_hba.conf"), WHO_GETS_IN)
}

fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let settings = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=300",
        "shared_buffers=32MB",
        // A standby can be made of it.
        "max_wal_senders=2",
        // Less disk: each test may have a database of its own.
        "min_wal_size=32MB",
        "max_wal_size=64MB",
    ];
    let settings = settings.into_iter().flat_map(|setting| ["-c".into(), setting.into()]);
    let place = ["-p".into(), port.to_string(), "-D".into(), data.display().to_string()];
    Ok(place.into_iter().chain(settings).collect())
}

/// Its own note tells the process id and whether it takes connections.
fn is_ready(_: u16, pid: u32, data: &Path) -> io::Result<bool> {
    let note = match fs::read_to_string(data.join("postmaster.pid")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        note => note?,
    };
    let mut lines = note.lines();
    let is_it = lines.next() == Some(&pid.to_string());
    Ok(is_it && lines.nth(6).is_some_and(|status| status.trim() == "ready"))
}
