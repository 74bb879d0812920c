//! Who is measured: lockkit, the floor under it, and other libraries, each as the agent that speaks
//! for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::run::Role;
use crate::servers::{Backend, Servers};

/// One that is measured on the servers of a backend.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As in reports.
    pub name: String,
    /// What it is to lockkit.
    pub role: Role,
    /// Its agent: the program, and what comes before the lease.
    pub agent: Vec<OsString>,
    /// What comes behind it.
    pub urls: Vec<String>,
    /// Whether it is slow until it was used for a while.
    pub compiles_as_it_runs: bool,
}

/// Where the agents are.
#[derive(Clone, Debug)]
pub struct Agents {
    /// This program, which has those of lockkit and of the floor.
    pub own: PathBuf,
    /// The folder into which `bench/run` has put the others: `release/lockkit-bench-peers`,
    /// `python/` (a virtual environment), `node/` and `java/` (classes).
    pub peers: PathBuf,
}

/// In which language a library is used, and so by which agent.
#[derive(Clone, Copy, Debug)]
enum Language {
    Rust,
    Python,
    Java,
    Node,
}

/// A library: its name in reports and for its agent, and where it can be used.
type Peer = (&'static str, &'static str, Language, fn(Backend) -> bool);

const PEERS: [Peer; 20] = [
    ("distributed-lock", "distributed-lock-file", Language::Rust, |on| on == Backend::File),
    ("distributed-lock", "distributed-lock-postgres", Language::Rust, |on| on == Backend::Postgres),
    ("sqlx PgAdvisoryLock", "sqlx-advisory", Language::Rust, |on| on == Backend::Postgres),
    ("distributed-lock", "distributed-lock-mysql", Language::Rust, |on| on == Backend::Mariadb),
    ("rslock", "rslock", Language::Rust, is_redis),
    ("distributed-lock", "distributed-lock-redis", Language::Rust, is_redis),
    ("distkit Mutex", "distkit", Language::Rust, |on| on == Backend::Redis),
    ("redis-py Lock", "redis-py", Language::Python, |on| on == Backend::Redis),
    ("python-redis-lock", "python-redis-lock", Language::Python, |on| on == Backend::Redis),
    ("node-redlock", "node-redlock", Language::Node, is_redis),
    ("zookeeper-client LockClient", "zookeeper-client", Language::Rust, is_zookeeper),
    ("kazoo Lock", "kazoo", Language::Python, is_zookeeper),
    ("Curator InterProcessMutex", "curator", Language::Java, is_zookeeper),
    ("Curator InterProcessSemaphoreMutex", "curator-semaphore", Language::Java, is_zookeeper),
    ("etcd-client v3lock", "v3lock", Language::Rust, is_etcd),
    ("etcdctl lock", "etcdctl", Language::Rust, is_etcd),
    ("ash-lock", "ash-lock", Language::Rust, is_etcd),
    ("tooz", "tooz", Language::Python, |on| on == Backend::File),
    ("tooz", "tooz", Language::Python, |on| matches!(on, Backend::Postgres | Backend::Mariadb)),
    ("tooz", "tooz", Language::Python, |on| matches!(on, Backend::Redis | Backend::ZooKeeper(1))),
];

fn is_redis(on: Backend) -> bool {
    matches!(on, Backend::Redis | Backend::Redlock(_))
}

fn is_zookeeper(on: Backend) -> bool {
    matches!(on, Backend::ZooKeeper(_))
}

fn is_etcd(on: Backend) -> bool {
    matches!(on, Backend::Etcd(_))
}

impl Agents {
    /// All that are measured on these servers: lockkit first, then the floor, then others.
    pub fn subjects(&self, servers: &Servers) -> Vec<Subject> {
        let backend = servers.backend();
        let own = |name: &str, role, what: [&str; 2], urls| Subject {
            name: name.into(),
            role,
            agent: [self.own.clone().into()].into_iter().chain(what.map(OsString::from)).collect(),
            urls,
            compiles_as_it_runs: false,
        };
        let (url, urls) = (servers.url(), servers.urls());
        let lockkit = |name, peer, url| own(name, Role::Lockkit, ["agent", peer], vec![url]);
        let floor = |name, of| own(name, Role::Floor, ["floor", of], urls.clone());
        let mut subjects = vec![lockkit("lockkit", "lockkit", url.clone())];
        match backend {
            Backend::Memory | Backend::File => (),
            Backend::Postgres => {
                let sessions = format!("{url}?hold=session");
                subjects.push(lockkit("lockkit, session", "lockkit", sessions));
                subjects.push(floor("floor", "postgres"));
                subjects.push(floor("floor, session", "postgres-session"));
            }
            Backend::Mariadb => {
                let sessions = format!("{url}?hold=session");
                subjects.push(lockkit("lockkit, session", "lockkit", sessions));
                subjects.push(floor("floor", "mariadb"));
                subjects.push(floor("floor, session", "mariadb-session"));
            }
            Backend::Redis => {
                subjects.push(lockkit("lockkit, fair", "lockkit-fair", url));
                subjects.push(floor("floor", "redis"));
            }
            Backend::Sqlite | Backend::Redlock(_) | Backend::ZooKeeper(_) | Backend::Etcd(_) => {
                subjects.push(floor("floor", backend.names().1));
            }
        }
        let here = PEERS.iter().filter(|(.., is_for)| is_for(backend));
        subjects.extend(here.map(|&(name, peer, language, _)| Subject {
            name: name.into(),
            role: Role::Peer,
            agent: self.peer(peer, language),
            urls: urls.iter().map(|url| as_others_have_it(url, peer)).collect(),
            compiles_as_it_runs: matches!(language, Language::Java | Language::Node),
        }));
        subjects
    }

    fn peer(&self, peer: &str, language: Language) -> Vec<OsString> {
        let folder = |name: &str| self.peers.join(name);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers");
        let words: Vec<OsString> = match language {
            Language::Rust => vec![folder("release/lockkit-bench-peers").into()],
            Language::Python => {
                vec![folder("python/bin/python").into(), sources.join("python/agent.py").into()]
            }
            Language::Node => vec!["node".into(), folder("node/agent.mjs").into()],
            Language::Java => {
                let mut classes = folder("java").into_os_string();
                for jar in JARS {
                    classes.push(format!(":/usr/share/java/{jar}.jar"));
                }
                let java = ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp"].map(OsString::from);
                java.into_iter().chain([classes, "Agent".into()]).collect()
            }
        };
        words.into_iter().chain([peer.into()]).collect()
    }
}

/// Where Debian has them.
const JARS: [&str; 8] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "guava",
    "slf4j-api",
    "slf4j-nop",
    "zookeeper",
    "zookeeper-jute",
];

fn as_others_have_it(url: &str, peer: &str) -> String {
    match peer {
        // It wants an authority, which is empty.
        "tooz" => match url.split_once(':') {
            Some(("file", path)) => format!("file://{path}"),
            Some(("postgres", rest)) => format!("postgresql:{rest}"),
            Some(("mariadb", rest)) => format!("mysql:{rest}"),
            _ => url.into(),
        },
        _ => url.replacen("mariadb:", "mysql:", 1),
    }
}
