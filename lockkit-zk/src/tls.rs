//! Encrypted connections, to servers that have shown who they are.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use zookeeper_client::{Client, Connector, Error, TlsOptions};

/// Which servers to trust and what to show them, both for the client library and for what is asked
/// outside a session.
#[derive(Clone)]
pub(crate) struct Tls {
    options: TlsOptions,
    beside: TlsConnector,
}

impl Tls {
    /// From the certificates to trust, and the client's certificate with its key.
    ///
    /// # Errors
    ///
    /// Says what cannot be used.
    pub(crate) fn from_pem(ca: &str, identity: Option<(&str, &str)>) -> Result<Self, String> {
        // The client library asks for the provider of the process. It brings a second one, and
        // where there are two, the process has none unless somebody has named one.
        if CryptoProvider::get_default().is_none() {
            // If somebody else was faster, one has been named all the same.
            _ = ring::default_provider().install_default();
        }
        let mut options = TlsOptions::new().with_pem_ca(ca).map_err(|error| error.to_string())?;
        if let Some((certificate, key)) = identity {
            options =
                options.with_pem_identity(certificate, key).map_err(|error| error.to_string())?;
        }
        let beside = config(ca, identity).map_err(|error| error.to_string())?;
        Ok(Self { options, beside: TlsConnector::from(Arc::new(beside)) })
    }

    /// Begins a session over TLS.
    pub(crate) async fn connect(&self, connector: Connector, hosts: &str) -> Result<Client, Error> {
        connector.with_tls(self.options.clone()).secure_connect(hosts).await
    }

    /// Encrypts a connection, to a server that has shown a certificate for `host`.
    pub(crate) async fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.beside.connect(name, stream).await
    }
}

/// Without what it holds, since there is a key in it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Whether there can be a certificate for `host`.
pub(crate) fn is_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// What the two ends did not agree on; `None` if the connection broke.
pub(crate) fn refusal(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref::<rustls::Error>().map(ToString::to_string)
}

fn config(
    ca: &str,
    identity: Option<(&str, &str)>,
) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
            config.with_client_auth_cert(chain.collect::<Result<_, _>>()?, key)?
        }
    })
}
