//! Private servers: that they serve, fail on demand, and never outlive their process.

#![expect(clippy::unwrap_used, reason = "in tests that clippy does not know as such")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use lockkit_testkit::{MARIADB, POSTGRES, Proxy, REDIS, Server, Unavailable, run, trial};

fn main() -> ExitCode {
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
                let cases: [(&[&str], i32, &str); 5] = [
                    (&[], 64, "usage"),
                    (&["redis", "true"], 64, "usage"),
                    (&["redis", "--"], 64, "usage"),
                    (
                        &["reddis", "--", "true"],
                        64,
                        "no server for `reddis`, there is mariadb, mysql, postgres, redis",
                    ),
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

/// The address in the URL that the command under `with-servers` prints.
fn announced(parent: &mut Child) -> SocketAddr {
    let mut url = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut url).unwrap();
    url.trim_end().strip_prefix("redis://").unwrap().parse().unwrap()
}
