//! In place of `tls.rs` where its feature is off: the same interface, to a `Tls` that cannot exist.

use std::io;

use tokio::net::TcpStream;
use zookeeper_client::{Client, Connector, Error};

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn from_pem(_: &str, _: Option<(&str, &str)>) -> Result<Self, String> {
        Err("TLS takes the feature `tls` of lockkit-zk, which is `zookeeper-tls` of lockkit".into())
    }

    pub(crate) async fn connect(&self, _: Connector, _: &str) -> Result<Client, Error> {
        match *self {}
    }

    pub(crate) async fn over(&self, _: TcpStream, _: &str) -> io::Result<TcpStream> {
        match *self {}
    }
}

pub(crate) fn is_name(_: &str) -> bool {
    true
}

pub(crate) fn refusal(_: &io::Error) -> Option<String> {
    None
}
