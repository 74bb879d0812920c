use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

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
        // Its own log tells that it listens: at the port there may be another process.
        let said = || fs::read_to_string(&log);
        let is_ready = |_| Ok(said()?.contains("listening for gRPC proxy client requests"));
        process.wait_until(is_ready).map_err(|error| {
            io::Error::other(format!("{error}: {}", said().unwrap_or_default()))
        })?;
        Ok(GrpcProxy { port, _process: process, _watchdog: watchdog })
    }
}
