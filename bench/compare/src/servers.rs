//! Private servers to measure on, what they use, and how many requests reach them.

mod count;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lockkit_bench::Result;
use lockkit_testkit::{ETCD, Ensemble, MARIADB, POSTGRES, REDIS, Server, ZOOKEEPER};
use tempfile::TempDir;

pub use self::count::Count;
use crate::process::Tree;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// This process.
    Memory,
    /// A folder.
    File,
    /// A file.
    Sqlite,
    /// A database.
    Postgres,
    /// A database.
    Mariadb,
    /// One server.
    Redis,
    /// So many servers that know nothing of each other.
    Redlock(usize),
    /// So many servers, one of which leads.
    ZooKeeper(usize),
    /// So many servers, one of which leads.
    Etcd(usize),
}

/// Private servers of a backend, with nothing in them and no waiting for a disk. They end, and all
/// that they have written goes, when this is dropped.
#[derive(Debug)]
pub struct Servers {
    backend: Backend,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// For what is in no server.
    Folder(TempDir),
    Alone(Vec<Server>),
    Together(Ensemble),
}

/// What servers use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// How long they were on a CPU so far.
    pub cpu: Duration,
    /// Their memory, in bytes.
    pub memory: u64,
    /// How many connections of clients they have.
    pub connections: u64,
}

impl Backend {
    /// All that are compared, in the order of reports.
    pub const ALL: [Self; 12] = [
        Self::Memory,
        Self::File,
        Self::Sqlite,
        Self::Postgres,
        Self::Mariadb,
        Self::Redis,
        Self::Redlock(3),
        Self::Redlock(5),
        Self::ZooKeeper(1),
        Self::ZooKeeper(3),
        Self::Etcd(1),
        Self::Etcd(3),
    ];

    /// As in reports and on the command line, such as `etcd, 3 members` and `etcd`.
    pub fn names(self) -> (String, &'static str) {
        let several = |name: &'static str, number, what| match number {
            1 => (name.to_owned(), name),
            number => (format!("{name}, {number} {what}"), name),
        };
        match self {
            Self::Memory => ("memory".into(), "memory"),
            Self::File => ("file".into(), "file"),
            Self::Sqlite => ("sqlite".into(), "sqlite"),
            Self::Postgres => ("postgres".into(), "postgres"),
            Self::Mariadb => ("mariadb".into(), "mariadb"),
            Self::Redis => ("redis".into(), "redis"),
            Self::Redlock(number) => several("redlock", number, "servers"),
            Self::ZooKeeper(number) => several("zookeeper", number, "members"),
            Self::Etcd(number) => several("etcd", number, "members"),
        }
    }
}

impl Servers {
    /// Starts them. Blocks until they serve.
    ///
    /// # Errors
    ///
    /// If the program is missing, or does not come up.
    pub fn start(backend: Backend) -> Result<Self> {
        let kind =
            match backend {
                Backend::Memory | Backend::File | Backend::Sqlite => {
                    Kind::Folder(TempDir::with_prefix("lockkit-compare-")?)
                }
                Backend::Postgres => Kind::Alone(vec![postgres()?]),
                Backend::Mariadb => Kind::Alone(vec![MARIADB.start_with(&[
                    "--innodb-flush-log-at-trx-commit=0",
                    "--max-connections=1000",
                ])?]),
                Backend::Redis => Kind::Alone(vec![REDIS.start()?]),
                Backend::Redlock(number) => {
                    let servers = (0..number).map(|_| REDIS.start());
                    Kind::Alone(servers.collect::<std::result::Result<_, _>>()?)
                }
                Backend::ZooKeeper(1) => Kind::Alone(vec![ZOOKEEPER.start()?]),
                Backend::ZooKeeper(number) => Kind::Together(ZOOKEEPER.start_ensemble(number)?),
                Backend::Etcd(1) => Kind::Alone(vec![ETCD.start()?]),
                Backend::Etcd(number) => Kind::Together(ETCD.start_ensemble(number)?),
            };
        Ok(Self { backend, kind })
    }

    /// What serves.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The URL for lockkit.
    pub fn url(&self) -> String {
        match (&self.kind, self.backend) {
            (Kind::Folder(_), Backend::Memory) => "memory:compare".into(),
            (Kind::Folder(folder), Backend::Sqlite) => {
                format!("sqlite:{}/locks.db", folder.path().display())
            }
            (Kind::Folder(folder), _) => format!("file:{}", folder.path().display()),
            (Kind::Together(ensemble), _) => ensemble.url(),
            (Kind::Alone(servers), Backend::Redlock(_)) => {
                let hosts: Vec<_> =
                    servers.iter().map(|server| server.addr().to_string()).collect();
                // They were started just now.
                format!("redlock://{}?delayed_restart=false", hosts.join(","))
            }
            (Kind::Alone(servers), _) => servers.iter().map(Server::url).collect(),
        }
    }

    /// The URL of each server, for others; `file:` and a folder where there is none.
    pub fn urls(&self) -> Vec<String> {
        match &self.kind {
            Kind::Folder(_) => vec![self.url()],
            _ => self.servers().iter().map(Server::url).collect(),
        }
    }

    /// Where each server is.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers().iter().map(Server::addr).collect()
    }

    /// The folder where files are kept, if there is no server.
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.kind {
            Kind::Folder(folder) => Some(folder.path().to_owned()),
            _ => None,
        }
    }

    /// Lets the servers run on that CPU only, or wherever this process may run.
    ///
    /// # Errors
    ///
    /// If the system does not let them, or one has ended.
    pub fn pin(&self, cpu: Option<usize>) -> Result<()> {
        self.trees()?.iter().try_for_each(|tree| tree.pin(cpu))
    }

    /// What they use, all together; nothing where there are none.
    ///
    /// # Errors
    ///
    /// If the system does not tell, or one has ended.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        for tree in self.trees()? {
            usage.cpu += tree.cpu()?;
            usage.memory += tree.memory()?;
        }
        for server in self.servers() {
            usage.connections += connections(server.port())?;
        }
        Ok(usage)
    }

    /// Begins to count the requests that reach them. `None` where there are no servers, or where they
    /// cannot tell.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn count(&self) -> Result<Option<Count>> {
        Count::begin(self).await
    }

    /// Whether they serve more slowly while they are [counted](Self::count) at, so that nothing else is
    /// to be measured meanwhile.
    pub fn are_slowed_by_counting(&self) -> bool {
        matches!(self.backend, Backend::Redis | Backend::Redlock(_))
    }

    /// What the servers call themselves, and of which version they are; nothing where there are none.
    ///
    /// # Errors
    ///
    /// If one does not answer.
    pub async fn version(&self) -> Result<Option<(String, String)>> {
        match self.servers() {
            [] => Ok(None),
            [first, ..] => count::version(self.backend, first).await.map(Some),
        }
    }

    /// The processes of the servers.
    ///
    /// # Errors
    ///
    /// If one has ended.
    pub fn trees(&self) -> Result<Vec<Tree>> {
        let tree = |server: &Server| Ok(Tree::of(server.pid().ok_or("the server has ended")?));
        self.servers().iter().map(tree).collect()
    }

    pub(crate) fn servers(&self) -> &[Server] {
        match &self.kind {
            Kind::Folder(_) => &[],
            Kind::Alone(servers) => servers,
            Kind::Together(ensemble) => ensemble.members(),
        }
    }
}

/// With the extension that counts statements, where it is installed.
fn postgres() -> Result<Server> {
    const QUICK: [&str; 6] =
        ["-c", "synchronous_commit=off", "-c", "fsync=off", "-c", "max_connections=1000"];
    let counting = [&QUICK[..], &["-c", "shared_preload_libraries=pg_stat_statements"]].concat();
    match POSTGRES.start_with(&counting) {
        Ok(server) => Ok(server),
        Err(_) => Ok(POSTGRES.start_with(&QUICK)?),
    }
}

/// How many there are to that port, as its server sees them.
fn connections(port: u16) -> Result<u64> {
    const ESTABLISHED: &str = "01";
    let mut number = 0;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = match fs::read_to_string(table) {
            Ok(text) => text,
            // A system without that protocol.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let local = format!(":{port:04X}");
        let is_it = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            matches!(fields[..], [_, at, _, state, ..] if at.ends_with(&local) && state == ESTABLISHED)
        };
        number += text.lines().filter(is_it).count() as u64;
    }
    Ok(number)
}
