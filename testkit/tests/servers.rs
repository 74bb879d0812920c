//! Private servers: that they serve, fail on demand, and never outlive their process.

#![expect(clippy::unwrap_used, reason = "in tests that clippy does not know as such")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, thread};

use lockkit_testkit::{
    Authority, ETCD, MARIADB, POSTGRES, Proxy, REDIS, RedisCluster, RedisSentinels, Server,
    Unavailable, ZOOKEEPER, run, trial,
};

fn main() -> ExitCode {
    if env::var_os(KEEPER).is_some() {
        keep_an_authority();
    }
    run(vec![
        trial(
            "a_server_serves_and_ends_when_dropped",
            || REDIS.start(),
            |server| async move {
                let (addr, data) = (server.addr(), server.data());
                assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
                assert_eq!(ask(addr, "SET key value"), "+OK");
                assert!(data.exists());
                drop(server);
                assert!(TcpStream::connect(addr).is_err());
                assert!(!data.exists(), "the folder stays");
            },
        ),
        trial(
            "a_postgres_goes_with_its_children_and_keeps_its_data",
            || POSTGRES.start(),
            |server| async move {
                let (addr, data) = (server.addr(), server.data());
                let (id, made) = (data.join("PG_VERSION"), data.join("made_by_the_test"));
                fs::write(&made, "").unwrap();
                // A session, which is a child of the server: "may we encrypt?", "no".
                let mut session = TcpStream::connect(addr).unwrap();
                session.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
                session.read_exact(&mut [0]).unwrap();
                server.kill();
                assert!(matches!(session.read(&mut [0]), Ok(0) | Err(_)));
                assert!(TcpStream::connect(addr).is_err());
                server.restart().unwrap();
                TcpStream::connect(addr).unwrap();
                assert!(id.exists() && made.exists());
                server.restart_empty().unwrap();
                TcpStream::connect(addr).unwrap();
                assert!(id.exists() && !made.exists());
                drop(server);
                assert!(TcpStream::connect(addr).is_err());
                assert!(!data.exists(), "the folder stays");
            },
        ),
        trial(
            "a_mariadb_keeps_its_data_and_takes_its_folder_along",
            || MARIADB.start(),
            |server| async move {
                let (addr, data) = (server.addr(), server.data());
                let made = data.join("made_by_the_test");
                fs::write(&made, "").unwrap();
                server.kill();
                assert!(TcpStream::connect(addr).is_err());
                server.restart().unwrap();
                TcpStream::connect(addr).unwrap();
                assert!(made.exists());
                server.restart_empty().unwrap();
                TcpStream::connect(addr).unwrap();
                assert!(!made.exists());
                drop(server);
                assert!(TcpStream::connect(addr).is_err());
                assert!(!data.exists(), "the folder stays");
            },
        ),
        trial(
            "an_etcd_keeps_its_data",
            || ETCD.start(),
            |server| async move {
                let addr = server.addr();
                assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
                let version = || post(addr, "/v3/kv/range", r#"{"key":"aQ=="}"#);
                post(addr, "/v3/kv/put", r#"{"key":"aQ==","value":"aQ=="}"#);
                assert!(version().contains(r#""version":"1""#));
                server.restart().unwrap();
                assert!(version().contains(r#""version":"1""#));
                server.restart_empty().unwrap();
                assert!(!version().contains("version"));
            },
        ),
        trial(
            "an_ensemble_goes_on_without_its_leader",
            || ETCD.start_ensemble(3),
            |ensemble| async move {
                let ports: Vec<_> = ensemble.members().iter().map(Server::port).collect();
                let [one, two, three] = ports[..] else { panic!("{ports:?}") };
                let url = format!("etcd://127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}");
                assert_eq!(ensemble.url(), url);
                let first = ensemble.leader();
                let put = r#"{"key":"aQ==","value":"aQ=="}"#;
                post(ensemble.members()[first].addr(), "/v3/kv/put", put);
                ensemble.members()[first].kill();
                let second = ensemble.leader();
                assert_ne!(first, second);
                let get = |member: usize| {
                    post(ensemble.members()[member].addr(), "/v3/kv/range", r#"{"key":"aQ=="}"#)
                };
                assert!(get(second).contains(r#""version":"1""#));
                ensemble.members()[first].restart().unwrap();
                assert!(get(first).contains(r#""version":"1""#));
            },
        ),
        trial(
            "with_servers_starts_an_ensemble",
            || ETCD.start_ensemble(3),
            |_| async move {
                let command = ["etcd:3", "--", "sh", "-c", "echo $LOCKKIT_TEST_ETCD_URL"];
                let output = with_servers(&command).output().unwrap();
                let url = String::from_utf8(output.stdout).unwrap();
                assert_eq!(url.matches("127.0.0.1:").count(), 3, "{url}");
            },
        ),
        trial(
            "a_zookeeper_keeps_its_data_and_takes_its_folder_along",
            || ZOOKEEPER.start(),
            |server| async move {
                let (addr, data) = (server.addr(), server.data());
                fs::write(data.join("settings"), "tickTime=777\n").unwrap();
                server.restart().unwrap();
                assert!(ask_zookeeper(addr, "conf").contains("tickTime=777\n"));
                server.restart_empty().unwrap();
                assert!(ask_zookeeper(addr, "conf").contains("tickTime=200\n"));
                drop(server);
                assert!(TcpStream::connect(addr).is_err());
                assert!(!data.exists(), "the folder stays");
            },
        ),
        trial(
            "an_ensemble_of_zookeepers_chooses_another_leader",
            || ZOOKEEPER.start_ensemble(3),
            |ensemble| async move {
                let first = ensemble.leader();
                ensemble.members()[first].kill();
                let second = ensemble.leader();
                assert_ne!(first, second);
                ensemble.members()[first].restart().unwrap();
                assert_eq!(ensemble.leader(), second);
            },
        ),
        trial(
            "sentinels_replace_a_primary",
            || RedisSentinels::start(Duration::from_secs(1)),
            |set| async move {
                let first = set.primary();
                assert_eq!(ask(set.servers()[first].addr(), "SET key value"), "+OK");
                set.servers()[first].kill();
                // The guard of the test bounds the wait.
                while set.primary() == first {}
                let second = set.primary();
                while ask(set.servers()[second].addr(), "SET key value") != "+OK" {}
                // A sentinel that is restarted knows what it knew.
                set.sentinels()[0].restart().unwrap();
                set.sentinels()[1].kill();
                assert_eq!(set.primary(), second);
            },
        ),
        trial(
            "a_cluster_replaces_a_primary_and_moves_a_slot",
            || RedisCluster::start(Duration::from_secs(1)),
            |cluster| async move {
                // The slot of `key`, in the last third.
                const SLOT: u16 = 12_539;
                let (first, to) = (cluster.owner(SLOT), 0);
                assert_eq!(ask(cluster.members()[first].addr(), "SET key value"), "+OK");
                cluster.begin_to_move(SLOT, to);
                cluster.move_key(SLOT, to, "key");
                let asked = ask(cluster.members()[first].addr(), "GET key");
                assert!(asked.starts_with("-ASK 12539 "), "{asked}");
                cluster.end_move(SLOT, to);
                assert_eq!(cluster.owner(SLOT), to);
                assert_eq!(ask(cluster.members()[to].addr(), "SET key value"), "+OK");
                cluster.members()[to].kill();
                while cluster.owner(SLOT) == to {}
                let successor = cluster.owner(SLOT);
                while ask(cluster.members()[successor].addr(), "SET key value") != "+OK" {}
            },
        ),
        trial(
            "with_servers_starts_several_redis",
            || REDIS.start(),
            |_| async move {
                for (wanted, servers) in [("redis-sentinel", 3), ("redis-cluster", 6)] {
                    let command = [wanted, "--", "sh", "-c", "env | grep LOCKKIT_TEST_REDIS"];
                    let output = with_servers(&command).output().unwrap();
                    let url = String::from_utf8(output.stdout).unwrap();
                    assert_eq!(url.matches("127.0.0.1:").count(), servers, "{url}");
                }
            },
        ),
        trial(
            "callers_of_url_share_one_server",
            || REDIS.url(),
            |url| async move {
                assert_eq!(REDIS.url().unwrap(), url);
            },
        ),
        trial(
            "servers_are_private",
            || Ok((REDIS.start()?, REDIS.start()?)),
            |(a, b)| async move {
                assert_eq!(ask(a.addr(), "SET key a"), "+OK");
                assert_eq!(ask(b.addr(), "EXISTS key"), ":0");
            },
        ),
        trial(
            "a_killed_server_refuses_until_restarted",
            || REDIS.start(),
            |server| async move {
                let (addr, pid) = (server.addr(), server.pid());
                assert_eq!(ask(addr, "SET key value"), "+OK");
                server.kill();
                server.kill();
                assert_eq!(server.pid(), None);
                assert!(TcpStream::connect(addr).is_err());
                assert!(server.stop().is_err());
                server.restart().unwrap();
                assert_ne!(server.pid(), pid);
                assert_eq!(ask(addr, "EXISTS key"), ":0", "there is no persistence by default");
            },
        ),
        trial("data_survive_only_a_restart_that_keeps_them", persistent, |server| async move {
            assert_eq!(ask(server.addr(), "SET key value"), "+OK");
            server.restart().unwrap();
            assert_eq!(ask(server.addr(), "EXISTS key"), ":1");
            server.restart_empty().unwrap();
            assert_eq!(ask(server.addr(), "EXISTS key"), ":0");
        }),
        trial(
            "a_stopped_server_answers_after_cont",
            || REDIS.start(),
            |server| async move {
                let mut stream = TcpStream::connect(server.addr()).unwrap();
                server.stop().unwrap();
                stream.write_all(b"PING\r\n").unwrap();
                // Nothing comes of itself here, so that only a patient look can tell.
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                assert!(stream.read(&mut [0]).is_err(), "it answers");
                stream.set_read_timeout(None).unwrap();
                server.cont().unwrap();
                assert_eq!(line(&mut stream), "+PONG");
                server.stop().unwrap();
                drop(server);
            },
        ),
        trial("a_server_may_want_a_password", locked, |server| async move {
            assert!(ask(server.addr(), "GET key").starts_with("-NOAUTH"));
        }),
        trial(
            "what_went_wrong_is_told",
            || REDIS.start(),
            |_installed| async move {
                let error = REDIS.start_with(&["--no-such-option", "x"]).unwrap_err().to_string();
                assert!(error.contains("ended with exit status: 1"), "{error}");
                assert!(error.contains("no-such-option"), "{error}");
            },
        ),
        trial(
            "a_server_is_reached_through_a_proxy",
            || REDIS.start(),
            |server| async move {
                let proxy = Proxy::start(server.addr()).await;
                assert_eq!(server.url_at(proxy.addr()), format!("redis://{}", proxy.addr()));
                let addr = proxy.addr();
                let answer = tokio::task::spawn_blocking(move || ask(addr, "PING")).await;
                assert_eq!(answer.unwrap(), "+PONG");
            },
        ),
        trial(
            "servers_end_with_a_process_that_is_killed",
            || REDIS.start(),
            |_| async move {
                let folders = tempfile::tempdir().unwrap();
                let mut parent = with_servers(&["redis", "--", "sh", "-c"])
                    .arg("echo $LOCKKIT_TEST_REDIS_URL; read -r _")
                    .env("TMPDIR", folders.path())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let addr = announced(&mut parent);
                assert_eq!(ask(addr, "PING"), "+PONG");
                assert_eq!(fs::read_dir(folders.path()).unwrap().count(), 1);
                parent.kill().unwrap();
                let status = parent.wait().unwrap();
                assert_eq!(status.signal(), Some(9));
                // The guard of the test bounds the wait.
                while TcpStream::connect(addr).is_ok()
                    || fs::read_dir(folders.path()).unwrap().count() > 0
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            },
        ),
        trial(
            "a_postgres_whose_process_is_killed_gives_back_its_shared_memory",
            || POSTGRES.start(),
            |_| async move {
                let folders = tempfile::tempdir().unwrap();
                let mut parent = with_servers(&["postgres", "--", "sh", "-c", "echo; read -r _"])
                    .env("TMPDIR", folders.path())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                said(&mut parent);
                let segment = segment_of_postgres(folders.path());
                assert!(!cfg!(target_os = "linux") || is_shared_memory(&segment), "{segment}");
                parent.kill().unwrap();
                parent.wait().unwrap();
                // The guard of the test bounds the wait.
                while fs::read_dir(folders.path()).unwrap().count() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(!is_shared_memory(&segment), "{segment} is left");
            },
        ),
        trial(
            "the_keys_of_an_authority_end_with_a_process_that_is_killed",
            || Authority::new(&REDIS),
            |_| async move {
                let folders = tempfile::tempdir().unwrap();
                let mut keeper = Command::new(env::current_exe().unwrap())
                    .env(KEEPER, "yes")
                    .env("TMPDIR", folders.path())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                said(&mut keeper);
                assert_eq!(fs::read_dir(folders.path()).unwrap().count(), 1);
                keeper.kill().unwrap();
                keeper.wait().unwrap();
                // As above.
                while fs::read_dir(folders.path()).unwrap().count() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            },
        ),
        trial(
            "with_servers_hands_on_how_the_command_ended",
            || REDIS.start(),
            |_| async move {
                for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
                    let status =
                        with_servers(&["redis", "--", "sh", "-c", script]).status().unwrap();
                    assert_eq!(status.code(), Some(code), "{script}");
                }
            },
        ),
        trial(
            "with_servers_says_what_is_wrong",
            || Ok(()),
            |()| async move {
                let cases: [(&[&str], i32, &str); 7] = [
                    (&[], 64, "usage"),
                    (&["redis", "true"], 64, "usage"),
                    (&["redis", "--"], 64, "usage"),
                    (
                        &["reddis", "--", "true"],
                        64,
                        "no server for `reddis`, there is etcd, mariadb, mysql, postgres, redis, \
                         zookeeper, redis-cluster, redis-sentinel",
                    ),
                    (&["redis:0", "--", "true"], 64, "an ensemble has 1 to 9 members"),
                    (&["redis:many", "--", "true"], 64, "an ensemble has 1 to 9 members"),
                    (&["--", "/no/such/program"], 127, "/no/such/program"),
                ];
                for (arguments, code, message) in cases {
                    let output = with_servers(arguments).output().unwrap();
                    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
                    let said = String::from_utf8(output.stderr).unwrap();
                    assert!(said.contains(message), "{arguments:?}: {said}");
                }
            },
        ),
        trial(
            "with_servers_names_the_missing_program",
            || Ok(()),
            |()| async move {
                let output =
                    with_servers(&["redis", "--", "true"]).env("PATH", "").output().unwrap();
                assert_eq!(output.status.code(), Some(69));
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("no redis-server or valkey-server in PATH"), "{said}");
            },
        ),
    ])
}

fn locked() -> Result<Server, Unavailable> {
    REDIS.start_with(&["--requirepass", "x"])
}

fn persistent() -> Result<Server, Unavailable> {
    REDIS.start_with(&["--appendonly", "yes"])
}

/// One inline command on a connection of its own, and the first line of its answer.
fn ask(addr: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{command}\r\n").unwrap();
    line(&mut stream)
}

fn post(addr: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn line(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_string()
}

fn with_servers(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command.args(arguments);
    command
}

/// Tells this program to be the process that is killed.
const KEEPER: &str = "LOCKKIT_TEST_KEEPER";

fn keep_an_authority() -> ! {
    let _authority = Authority::new(&REDIS).unwrap();
    io::stdout().write_all(b"\n").unwrap();
    loop {
        thread::park();
    }
}

/// The address in the URL that the command under `with-servers` prints.
fn announced(parent: &mut Child) -> SocketAddr {
    said(parent).strip_prefix("redis://").unwrap().parse().unwrap()
}

/// The first line that a process prints.
fn said(process: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// The id that the system gave the shared memory of the PostgreSQL whose folder is in this one.
fn segment_of_postgres(folders: &Path) -> String {
    let folder = fs::read_dir(folders).unwrap().next().unwrap().unwrap().path();
    let note = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    note.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// Whether the system has shared memory of that id. Only Linux tells.
fn is_shared_memory(id: &str) -> bool {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    table.lines().any(|line| line.split_whitespace().nth(1) == Some(id))
}

/// A command of four letters.
fn ask_zookeeper(addr: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(command.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
