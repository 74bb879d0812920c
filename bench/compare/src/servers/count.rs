use std::net::SocketAddr;
use std::time::Duration;

use lockkit_bench::Result;
use lockkit_testkit::Server;
use sqlx::{Connection as _, MySqlConnection, PgConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Backend, Servers};

/// Requests that are being counted.
#[derive(Debug)]
pub struct Count {
    meters: Vec<Meter>,
}

/// What tells how many requests have reached a server.
#[derive(Debug)]
enum Meter {
    /// Redis tells of each request while it is asked to: its own figures count the commands of
    /// scripts as well.
    Monitor(Monitor),
    /// The others have a counter.
    Counter { source: Source, before: u64, price: u64 },
}

#[derive(Debug)]
enum Source {
    Postgres(PgConnection),
    Mariadb(MySqlConnection),
    ZooKeeper(SocketAddr),
    Etcd(SocketAddr),
}

impl Count {
    pub(super) async fn begin(servers: &Servers) -> Result<Option<Self>> {
        let mut meters = Vec::new();
        for server in servers.servers() {
            match Meter::begin(servers.backend(), server).await? {
                Some(meter) => meters.push(meter),
                None => return Ok(None),
            }
        }
        Ok((!meters.is_empty()).then_some(Self { meters }))
    }

    /// How many have reached the servers since it began, those of all clients together.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn end(self) -> Result<u64> {
        let mut requests = 0;
        for meter in self.meters {
            requests += meter.end().await?;
        }
        Ok(requests)
    }
}

impl Meter {
    async fn begin(backend: Backend, server: &Server) -> Result<Option<Self>> {
        let source = match backend {
            Backend::Memory | Backend::File | Backend::Sqlite => return Ok(None),
            Backend::Redis | Backend::Redlock(_) => {
                return Ok(Some(Self::Monitor(Monitor::begin(server.addr()).await?)));
            }
            Backend::Postgres => {
                let mut connection = PgConnection::connect(&server.url()).await?;
                let extension = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements";
                if sqlx::query(extension).execute(&mut connection).await.is_err() {
                    return Ok(None);
                }
                Source::Postgres(connection)
            }
            Backend::Mariadb => {
                // The scheme of their own is not known to the client library.
                let url = server.url().replacen("mariadb", "mysql", 1);
                Source::Mariadb(MySqlConnection::connect(&url).await?)
            }
            Backend::ZooKeeper(_) => Source::ZooKeeper(server.addr()),
            Backend::Etcd(_) => Source::Etcd(server.addr()),
        };
        let mut source = source;
        // Reading it may count as well.
        let first = match source.read().await {
            Ok(first) => first,
            Err(_) if matches!(source, Source::Postgres(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let before = source.read().await?;
        Ok(Some(Self::Counter { source, before, price: before - first }))
    }

    async fn end(self) -> Result<u64> {
        match self {
            Self::Monitor(monitor) => monitor.end().await,
            Self::Counter { mut source, before, price } => {
                Ok((source.read().await? - before).saturating_sub(price))
            }
        }
    }
}

impl Source {
    async fn read(&mut self) -> Result<u64> {
        match self {
            Self::Postgres(connection) => {
                let calls = "SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements";
                let calls: i64 = sqlx::query_scalar(calls).fetch_one(connection).await?;
                Ok(u64::try_from(calls)?)
            }
            Self::Mariadb(connection) => {
                let questions = "SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM \
                                 information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'";
                let questions: i64 = sqlx::query_scalar(questions).fetch_one(connection).await?;
                Ok(u64::try_from(questions)?)
            }
            Self::ZooKeeper(addr) => {
                let answer = ask(*addr, "mntr").await?;
                let packets =
                    answer.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
                Ok(packets.ok_or("ZooKeeper tells no packets")?.trim().parse()?)
            }
            Self::Etcd(addr) => {
                let answer = ask(*addr, "GET /metrics HTTP/1.0\r\n\r\n").await?;
                let messages = answer
                    .lines()
                    .filter(|line| line.starts_with("grpc_server_msg_received_total"))
                    .filter_map(|line| line.rsplit(' ').next())
                    .map(|number| number.parse::<f64>());
                let mut sum = 0.0;
                for number in messages {
                    sum += number?;
                }
                Ok(sum as u64)
            }
        }
    }
}

/// What the server calls itself, and of which version it is.
pub(super) async fn version(backend: Backend, server: &Server) -> Result<(String, String)> {
    let (name, version) = match backend {
        Backend::Memory | Backend::File | Backend::Sqlite => {
            return Err("there is no server".into());
        }
        Backend::Redis | Backend::Redlock(_) => {
            let answer = ask(server.addr(), "INFO server\r\nQUIT\r\n").await?;
            ("Redis", after(&answer, "redis_version:")?)
        }
        Backend::Postgres => {
            let mut connection = PgConnection::connect(&server.url()).await?;
            let version = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection);
            ("PostgreSQL", version.await?)
        }
        Backend::Mariadb => {
            let url = server.url().replacen("mariadb", "mysql", 1);
            let mut connection = MySqlConnection::connect(&url).await?;
            let version = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut connection);
            ("MariaDB", version.await?)
        }
        Backend::ZooKeeper(_) => {
            let answer = ask(server.addr(), "srvr").await?;
            ("ZooKeeper", after(&answer, "Zookeeper version: ")?)
        }
        Backend::Etcd(_) => {
            let answer = ask(server.addr(), "GET /version HTTP/1.0\r\n\r\n").await?;
            ("etcd", after(&answer, "\"etcdserver\":\"")?)
        }
    };
    // What comes behind is how it was built.
    let end = version.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(version.len());
    Ok((name.into(), version[..end].into()))
}

fn after(answer: &str, word: &str) -> Result<String> {
    let (_, rest) = answer.split_once(word).ok_or_else(|| format!("no `{word}` in {answer}"))?;
    Ok(rest.into())
}

/// Sends a text, and hears all until the other side hangs up.
async fn ask(addr: SocketAddr, text: &str) -> Result<String> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let asking = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Result::Ok(answer)
    };
    timeout(PATIENCE, asking).await.map_err(|_| format!("no answer within {PATIENCE:?}"))?
}

/// A connection over which Redis tells what it is asked.
#[derive(Debug)]
struct Monitor {
    addr: SocketAddr,
    mark: String,
    counting: JoinHandle<Result<u64>>,
    /// Held, or the other half would end.
    _half: OwnedWriteHalf,
}

impl Monitor {
    async fn begin(addr: SocketAddr) -> Result<Self> {
        let (half, mut writer) = TcpStream::connect(addr).await?.into_split();
        let mut lines = BufReader::new(half);
        writer.write_all(b"MONITOR\r\n").await?;
        let mut answer = String::new();
        lines.read_line(&mut answer).await?;
        if answer != "+OK\r\n" {
            return Err(format!("Redis does not tell what it is asked: {answer}").into());
        }
        let mark = format!("lockkit-compare-{:016x}", fastrand::u64(..));
        let counting = tokio::spawn(count(lines, mark.clone()));
        Ok(Self { addr, mark, counting, _half: writer })
    }

    /// What is counted is heard of in order: so it ends with a mark of our own.
    async fn end(self) -> Result<u64> {
        let mut stream = TcpStream::connect(self.addr).await?;
        stream.write_all(format!("ECHO {}\r\n", self.mark).as_bytes()).await?;
        self.counting.await?
    }
}

async fn count(mut lines: BufReader<OwnedReadHalf>, mark: String) -> Result<u64> {
    let (mut requests, mut line) = (0, Vec::new());
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).await? == 0 {
            return Err("Redis has ended what it told".into());
        }
        // `+1700000000.123456 [0 127.0.0.1:50000] "GET" "key"`; of scripts `[0 lua]`.
        let head = &line[..line.len().min(60)];
        if line.windows(mark.len()).any(|part| part == mark.as_bytes()) {
            return Ok(requests);
        }
        if !head.windows(5).any(|part| part == b" lua]") {
            requests += 1;
        }
    }
}
