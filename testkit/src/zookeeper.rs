use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::Backend;
use crate::ensemble::{Joining, Seat};

/// One ZooKeeper, or an ensemble of several, with a tick of 200 ms.
///
/// A test that wants other settings writes them to the file `settings` in the server's
/// [folder](crate::Server::data), and restarts it.
pub static ZOOKEEPER: Backend = Backend {
    id: "zookeeper",
    url_variable: "LOCKKIT_TEST_ZOOKEEPER_URL",
    programs: &["java"],
    folders: Vec::new,
    is_it: |_| Path::new(JAR).exists(),
    prepare: |_, _, _| Ok(()),
    refuses_root: false,
    kill: Signal::KILL,
    arguments,
    is_ready,
    url: |port| url(&[port]),
    ensemble: Some(Joining { peer_ports: 2, arguments: arguments_of_member, is_leader, url }),
    shared: OnceLock::new(),
};

/// Where Debian has it. What it needs is found beside it, except for TLS.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const CLASS_PATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:\
                          /usr/share/java/netty-resolver.jar:/usr/share/java/netty-tcnative.jar";

const SETTINGS: &str = "\
tickTime=200
initLimit=50
syncLimit=10
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
clientPortAddress=127.0.0.1
";

fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("zookeeper://{}", hosts.join(","))
}

fn arguments(port: u16, data: &Path) -> io::Result<Vec<String>> {
    command(port, data, "")
}

fn arguments_of_member(seat: &Seat, data: &Path) -> io::Result<Vec<String>> {
    fs::write(data.join("myid"), (seat.index + 1).to_string())?;
    let line = |(at, ports): (usize, &Vec<u16>)| {
        format!("server.{}=127.0.0.1:{}:{}\n", at + 1, ports[1], ports[2])
    };
    let members: String = seat.ports.iter().enumerate().map(line).collect();
    command(seat.port(), data, &members)
}

fn command(port: u16, data: &Path, members: &str) -> io::Result<Vec<String>> {
    let own = own_settings(data)?;
    let (file, folder) = (data.join("zoo.cfg"), data.display());
    let settings = format!("{SETTINGS}dataDir={folder}\nclientPort={port}\n{members}{own}");
    fs::write(&file, settings)?;
    let java = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
    // Containers that have become empty go within a second, not within a minute.
    let quick = ["-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=500"];
    let main = ["-cp", CLASS_PATH, "org.apache.zookeeper.server.quorum.QuorumPeerMain"];
    let words = java.into_iter().chain(quick).chain(main).map(String::from);
    Ok(words.chain([file.display().to_string()]).collect())
}

/// What a test wants beside our settings.
fn own_settings(data: &Path) -> io::Result<String> {
    match fs::read_to_string(data.join("settings")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

/// Asks where its data is, because another test's server may have been faster at this port. A
/// server that is set up not to tell is serving; which one it is cannot be asked. A second port,
/// for TLS, is opened after the first one serves.
fn is_ready(port: u16, _: u32, data: &Path) -> io::Result<bool> {
    if !ask(port, "srvr")?.contains("Mode: ") {
        return Ok(false);
    }
    if let Some(secure) = secure_port(&own_settings(data)?) {
        connect(secure)?;
    }
    let settings = ask(port, "conf")?;
    let folder = format!("dataDir={}/", data.display());
    Ok(settings.contains(&folder) || settings.contains("not in the whitelist"))
}

fn is_leader(port: u16) -> io::Result<bool> {
    Ok(ask(port, "srvr")?.contains("Mode: leader"))
}

fn secure_port(settings: &str) -> Option<u16> {
    settings.lines().find_map(|line| line.strip_prefix("secureClientPort=")?.parse().ok())
}

/// How long to wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), PATIENCE)
}

/// Sends a command of four letters.
fn ask(port: u16, command: &str) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(command.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
