use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::Backend;
use crate::ensemble::{Joining, Seat};

/// One etcd, or an ensemble of several.
pub static ETCD: Backend = Backend {
    id: "etcd",
    url_variable: "LOCKKIT_TEST_ETCD_URL",
    programs: &["etcd"],
    folders: Vec::new,
    is_it: |_| true,
    prepare: |_, _, _| Ok(()),
    refuses_root: false,
    kill: Signal::KILL,
    arguments,
    is_ready,
    url: |port| url(&[port]),
    ensemble: Some(Joining { peer_ports: 1, arguments: arguments_of_member, is_leader, url }),
    shared: OnceLock::new(),
};

fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}", hosts.join(","))
}

fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    // No other server has this folder, so none has its name.
    let folder = data.parent().and_then(Path::file_name).unwrap_or_default();
    let name = folder.to_string_lossy().into_owned();
    // It never hears of another member, so any port will do.
    let peer = "http://127.0.0.1:0".to_owned();
    let cluster = format!("{name}={peer}");
    Ok(arguments_of(port, data, &name, &name, &peer, &cluster))
}

fn arguments_of_member(seat: &Seat, data: &Path) -> io::Result<Vec<String>> {
    let name = |index| format!("{:x}-{index}", seat.tag);
    let peer = |index: usize| format!("http://127.0.0.1:{}", seat.ports[index][1]);
    let all: Vec<_> =
        (0..seat.ports.len()).map(|at| format!("{}={}", name(at), peer(at))).collect();
    let (own, own_peer) = (name(seat.index), peer(seat.index));
    // `is_ready` knows it by its name.
    fs::write(data.join("name"), &own)?;
    // The times of elections are left alone: a busy machine cannot keep shorter ones.
    let token = format!("{:x}", seat.tag);
    Ok(arguments_of(seat.port(), data, &own, &token, &own_peer, &all.join(",")))
}

/// The cluster's id is made from the token and the peers.
fn arguments_of(
    port: u16,
    data: &Path,
    name: &str,
    token: &str,
    peer: &str,
    cluster: &str,
) -> Vec<String> {
    let client = format!("http://127.0.0.1:{port}");
    let data = data.join("db").display().to_string();
    [
        ["--name", name],
        ["--data-dir", &data],
        ["--listen-client-urls", &client],
        ["--advertise-client-urls", &client],
        ["--listen-peer-urls", peer],
        ["--initial-advertise-peer-urls", peer],
        ["--initial-cluster", cluster],
        ["--initial-cluster-token", token],
        ["--log-level", "error"],
    ]
    .into_iter()
    .flatten()
    .chain(["--unsafe-no-fsync"])
    .map(String::from)
    .collect()
}

/// Asks for its name as well, because another test's server may have been faster at this port.
fn is_ready(port: u16, _: u32, data: &Path) -> io::Result<bool> {
    let name = match fs::read_to_string(data.join("name")) {
        Ok(name) => name,
        Err(_) => {
            let folder = data.parent().and_then(Path::file_name).unwrap_or_default();
            folder.to_string_lossy().into_owned()
        }
    };
    let health = ask(port, "GET", "/health")?;
    // A server that wants to be spoken to in TLS hangs up, so it cannot be asked who it is.
    if health.is_empty() || health.contains("HTTP request to an HTTPS server") {
        return Ok(true);
    }
    let members = ask(port, "POST", "/v3/cluster/member/list")?;
    // Where users are required, later versions do not tell strangers.
    if members.contains("user name is empty") {
        return Ok(true);
    }
    Ok(health.contains("\"health\":\"true\"") && members.contains(&name))
}

fn is_leader(port: u16) -> io::Result<bool> {
    let status = ask(port, "POST", "/v3/maintenance/status")?;
    let number = |name| status.split(name).nth(1).and_then(|rest| rest.split('"').next());
    let own = number("\"member_id\":\"");
    Ok(own.is_some() && own == number("\"leader\":\""))
}

fn ask(port: u16, method: &str, path: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{{}}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
