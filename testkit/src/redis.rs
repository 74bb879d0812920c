mod ask;
mod cluster;
mod encryption;
mod sentinel;

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

pub use self::cluster::RedisCluster;
pub use self::sentinel::RedisSentinels;
use crate::Backend;

/// The fork will do as well.
const PROGRAMS: &[&str] = &["redis-server", "valkey-server"];

/// One Redis, or its fork Valkey.
pub static REDIS: Backend = Backend {
    id: "redis",
    url_variable: "LOCKKIT_TEST_REDIS_URL",
    programs: PROGRAMS,
    folders: Vec::new,
    is_it: |_| true,
    prepare: |_, _, _| Ok(()),
    refuses_root: false,
    kill: Signal::KILL,
    arguments,
    is_ready,
    url: |port| format!("redis://127.0.0.1:{port}"),
    ensemble: None,
    shared: OnceLock::new(),
};

/// In the server's folder, to reach the server whatever its port asks for, such as TLS.
const SOCKET: &str = "redis.sock";

fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    let port = port.to_string();
    let data = data.display().to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--dir", &data].into_iter().chain([
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--unixsocket",
        SOCKET,
    ]);
    Ok(arguments.map(String::from).collect())
}

/// Asks over the socket, which no other server has. A server that cannot have its port as well
/// ends.
fn is_ready(_: u16, _: u32, data: &Path) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let mut stream = UnixStream::connect(data.join(SOCKET))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"PING\r\n")?;
    let answer = BufReader::new(stream).lines().next().transpose()?;
    // A server that first wants a password is serving.
    Ok(answer.is_some_and(|answer| answer == "+PONG" || answer.starts_with("-NOAUTH")))
}
