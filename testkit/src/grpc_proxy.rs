use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::port::at_free_port;
use crate::process::{Process, Watchdog};
use crate::{ETCD, Server, Unavailable};

/// The proxy that comes with etcd, in front of an [`ETCD`]. It is killed, and its folder removed,
/// when it is dropped or when this process ends, in whatever way.
#[derive(Debug)]
pub struct GrpcProxy {
    port: u16,
    /// Ends before the watchdog, which takes the folder along.
    _process: Process,
    _watchdog: Watchdog,
}

impl GrpcProxy {
    /// Starts one.
    ///
    /// # Errors
    /// [`Unavailable`] if the program is missing or does not come up.
    pub fn start(upstream: &Server) -> Result<GrpcProxy, Unavailable> {
        let program = ETCD.program()?;
        let failed = |error: io::Error| ETCD.failed(&error, String::new());
        at_free_port(failed, |port| Self::launch(port, &program, upstream).map_err(failed))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn launch(port: u16, program: &Path, upstream: &Server) -> io::Result<GrpcProxy> {
        let (watchdog, folder) = Watchdog::with_folder()?;
        let [endpoint, listen] = [upstream.port(), port].map(|port| format!("127.0.0.1:{port}"));
        let data = folder.join("data").display().to_string();
        let endpoints = ["--endpoints", &endpoint, "--listen-addr", &listen, "--data-dir", &data];
        let arguments = ["grpc-proxy", "start"].into_iter().chain(endpoints);
        let log = folder.join("log");
        let file = File::create(&log)?;
        let mut process = watchdog.run(program, arguments, [], None, Signal::KILL, file)?;
        wait_until_ready(&mut process, &log)?;
        Ok(GrpcProxy { port, _process: process, _watchdog: watchdog })
    }
}

/// Its own log tells that it listens: at the port there may be another process.
fn wait_until_ready(process: &mut Process, log: &Path) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    const PAUSE: Duration = Duration::from_millis(2);
    let started = Instant::now();
    loop {
        let said = fs::read_to_string(log)?;
        if said.contains("listening for gRPC proxy client requests") {
            return Ok(());
        }
        if let Some(status) = process.exit_status()? {
            return Err(io::Error::other(format!("its process ended with {status}: {said}")));
        }
        if started.elapsed() >= PATIENCE {
            return Err(io::Error::other(format!("it is not ready after {PATIENCE:?}: {said}")));
        }
        thread::sleep(PAUSE);
    }
}
