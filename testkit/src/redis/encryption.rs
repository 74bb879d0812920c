use std::io;
use std::path::Path;

use super::REDIS;
use crate::port::at_free_port;
use crate::{Authority, Backend, Server, Unavailable};

/// What servers need to speak TLS, at a port beside their own, to each other and to clients.
#[derive(Debug)]
pub(super) struct Encryption {
    authority: Authority,
    arguments: Vec<String>,
}

/// A server, and the port at which others are to reach it: by TLS if there is any.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) server: Server,
    pub(super) port: u16,
}

impl Encryption {
    pub(super) fn new() -> Result<Self, Unavailable> {
        let authority = Authority::new(&REDIS)?;
        let failed = |error: io::Error| REDIS.failed(&error, String::new());
        let server = authority.server("127.0.0.1").map_err(failed)?;
        let client = authority.client("server").map_err(failed)?;
        let files = [
            ("--tls-ca-cert-file", authority.certificate()),
            ("--tls-cert-file", server.certificate),
            ("--tls-key-file", server.key),
            // The certificate with which it reaches the others.
            ("--tls-client-cert-file", client.certificate),
            ("--tls-client-key-file", client.key),
        ];
        let files = files.iter().flat_map(|(name, file)| [(*name).into(), text(file)]);
        let settings = ["--tls-auth-clients", "no", "--tls-replication", "yes"];
        let arguments = files.chain(settings.map(String::from)).collect();
        Ok(Self { authority, arguments })
    }
}

/// The URL, which has no parameters yet, for clients of servers that are reached in this way.
pub(super) fn url(encryption: Option<&Encryption>, url: String) -> String {
    match encryption {
        Some(Encryption { authority, .. }) => {
            let roots = text(&authority.certificate());
            format!("{}?cacert={roots}", url.replacen("redis", "rediss", 1))
        }
        None => url,
    }
}

/// Starts a server that others reach by `encryption`, if there is any.
pub(super) fn start(
    backend: &'static Backend,
    encryption: Option<&Encryption>,
    arguments: &[&str],
) -> Result<Reached, Unavailable> {
    let Some(Encryption { arguments: of_tls, .. }) = encryption else {
        let server = backend.start_with(arguments)?;
        return Ok(Reached { port: server.port(), server });
    };
    let failed = |error: io::Error| backend.failed(&error, String::new());
    at_free_port(failed, |port| {
        let secure = port.to_string();
        let mut all = vec!["--tls-port", &secure];
        all.extend(of_tls.iter().map(String::as_str).chain(arguments.iter().copied()));
        Ok(Reached { server: backend.start_with(&all)?, port })
    })
}

fn text(file: &Path) -> String {
    file.display().to_string()
}
