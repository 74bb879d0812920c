use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::Backend;

/// One Redis, or its fork Valkey.
pub static REDIS: Backend = Backend {
    id: "redis",
    url_variable: "LOCKKIT_TEST_REDIS_URL",
    programs: &["redis-server", "valkey-server"],
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
    ]);
    Ok(arguments.map(String::from).collect())
}

/// Asks for the process id, because another test's server may have been faster at this port.
fn is_ready(port: u16, pid: u32, _: &Path) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"PING\r\nINFO server\r\n")?;
    let mut lines = BufReader::new(stream).lines();
    match lines.next().transpose()?.as_deref() {
        Some("+PONG") => {}
        // A server that wants a password first serves; which one it is cannot be asked.
        Some(refusal) => return Ok(refusal.starts_with("-NOAUTH")),
        None => return Ok(false),
    }
    for line in lines {
        match line?.strip_prefix("process_id:") {
            Some(answered_by) => return Ok(answered_by == pid.to_string()),
            None => continue,
        }
    }
    Ok(false)
}
