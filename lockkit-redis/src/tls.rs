use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkit_core::driver::{LastGood, blocking};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, ClientConfig, RootCertStore};

use crate::error::Failure;

/// Which servers to trust and what to show them, according to files that may be replaced.
#[derive(Clone)]
pub(crate) struct Tls {
    files: Arc<Files>,
    last: Arc<LastGood<Settings>>,
}

/// What the files say at one time.
#[derive(Clone)]
pub(crate) struct Settings {
    connector: TlsConnector,
    shows_itself: bool,
    /// Why the files say nothing usable now; if set, the rest is what they said before.
    problem: Option<String>,
}

/// The files that a URL names.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Certificates to trust, instead of those that the system trusts.
    pub(crate) roots: Option<PathBuf>,
    /// The client's certificate, along with those between it and a root, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Says what cannot be used, in a text that names the file.
    pub(crate) async fn of(files: Files) -> Result<Self, String> {
        let files = Arc::new(files);
        let settings = load(&files).await?;
        Ok(Self { files, last: Arc::new(LastGood::new(settings)) })
    }

    /// What to connect with. The files are read again each time, since certificates are replaced
    /// before they expire. If one of them is just being written, what there was before remains in
    /// use.
    pub(crate) async fn settings(&self) -> Settings {
        let (settings, problem) = self.last.or_last(load(&self.files).await);
        Settings { problem, ..settings }
    }
}

async fn load(files: &Arc<Files>) -> Result<Settings, String> {
    let files = Arc::clone(files);
    let loading = blocking(move || Settings::load(&files));
    loading.await.unwrap_or_else(|stopped| Err(stopped.to_string()))
}

impl Settings {
    /// Reads the files, and what the system trusts. This may take some milliseconds of work.
    fn load(files: &Files) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match &files.roots {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| about(file, error))?;
                }
            }
            // Among the many certificates of a system, some may be of a kind that rustls does not
            // know.
            None => {
                let found = rustls_native_certs::load_native_certs();
                let (usable, _) = roots.add_parsable_certificates(found.certs);
                if usable == 0 {
                    let reasons: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
                    let reasons = reasons.join("; ");
                    return Err(format!("this system trusts no certificates: {reasons}"));
                }
            }
        }
        // The provider is named, so that it does not matter which ones an application has, or how
        // many.
        let provider = Arc::new(ring::default_provider());
        let settings = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let settings = match &files.identity {
            None => settings.with_no_client_auth(),
            Some((certificate, file)) => {
                let key = PrivateKeyDer::from_pem_file(file).map_err(|error| about(file, error))?;
                settings
                    .with_client_auth_cert(certificates(certificate)?, key)
                    .map_err(|error| about(certificate, error))?
            }
        };
        let shows_itself = files.identity.is_some();
        let connector = TlsConnector::from(Arc::new(settings));
        Ok(Self { connector, shows_itself, problem: None })
    }

    /// Why connecting to the server with these settings failed. If they are old, the files may soon
    /// say what is accepted.
    pub(crate) fn blame(&self, failure: Failure) -> Failure {
        match &self.problem {
            Some(problem) if failure.is_about_certificates() => {
                Failure::OldFiles { problem: problem.clone(), failure: Box::new(failure) }
            }
            _ => failure,
        }
    }

    /// Encrypts a connection to a server, once that has shown a certificate for `host`.
    pub(crate) async fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Failure::Tls(format!("no certificate can be for the host `{host}`")))?;
        self.connector.connect(name, stream).await.map_err(|error| match cause(&error) {
            // What TLS 1.2 has a server say at once to a client that shows no certificate; it says
            // the same if there is no cipher in common.
            Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure))
                if !self.shows_itself =>
            {
                Failure::Redis(error.into())
            }
            // And what it says about one that was shown.
            Some(rustls::Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied,
            ))
            | None => Failure::Redis(error.into()),
            Some(cause) => Failure::Tls(cause.to_string()),
        })
    }
}

/// Prints nothing of what it holds, since there is a key in it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match certificates.map_err(|error| about(file, error))? {
        none if Vec::is_empty(&none) => Err(about(file, "there is no certificate in it")),
        certificates => Ok(certificates),
    }
}

fn about(file: &Path, problem: impl fmt::Display) -> String {
    format!("{}: {problem}", file.display())
}

/// What the two ends did not agree on; `None` if the connection broke.
fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
