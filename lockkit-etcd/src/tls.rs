//! Which servers to trust and what to show them, according to files that may be replaced.

use std::error::Error;
use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Identity, TlsOptions};
use lockkit_core::driver::{LastGood, blocking};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tonic::transport::Endpoint;

pub(crate) struct Tls {
    files: Files,
    last: LastGood<TlsOptions>,
}

/// The files that a URL names.
pub(crate) struct Files {
    /// Certificates to trust, instead of those that the system trusts.
    pub(crate) roots: Option<PathBuf>,
    /// The client's certificate, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Says what cannot be used, in a text that names the file, or those that go together.
    pub(crate) async fn of(files: Files) -> Result<Self, String> {
        let last = LastGood::new(files.options().await?);
        Ok(Self { files, last })
    }

    /// What to connect with. The files are read again each time, since certificates are replaced
    /// before they expire. If one of them is just being written, what there was before remains in
    /// use.
    pub(crate) async fn options(&self) -> TlsOptions {
        let (options, problem) = self.last.or_last(self.files.options().await);
        if let Some(problem) = problem {
            tracing::debug!(%problem, "the certificates that there were are used again");
        }
        options
    }
}

impl Files {
    /// What they come to, if all of it can be used.
    async fn options(&self) -> Result<TlsOptions, String> {
        let mut options = match &self.roots {
            Some(file) => TlsOptions::new().ca_certificate(roots(file).await?),
            None => TlsOptions::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            options =
                options.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
        }
        checked(options).await.map_err(|problem| {
            let identity = self.identity.as_ref().map(|(certificate, key)| [certificate, key]);
            let files = self.roots.iter().chain(identity.into_iter().flatten());
            let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
            format!("{}: {problem}", files.join(", "))
        })
    }
}

async fn roots(file: &Path) -> Result<Certificate, String> {
    let pem = read(file).await?;
    // Without any, no server would be trusted.
    match CertificateDer::pem_slice_iter(&pem).next() {
        Some(_) => Ok(Certificate::from_pem(pem)),
        None => Err(format!("{}: there is no certificate in it", file.display())),
    }
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    let path = file.to_owned();
    let read = blocking(move || std::fs::read(path)).await.and_then(|read| read);
    read.map_err(|error| format!("{}: {error}", file.display()))
}

/// The options, if there are certificates in them, and the key to the client's. To find out may
/// take some milliseconds of work, if the system's certificates are read for it.
async fn checked(options: TlsOptions) -> Result<TlsOptions, String> {
    let checking = blocking(move || {
        let checked = Endpoint::from_static("https://localhost").tls_config(options.clone());
        checked.map(|_| options).map_err(|problem| innermost(&problem))
    });
    checking.await.unwrap_or_else(|stopped| Err(stopped.to_string()))
}

/// The text of the error at the bottom: the outer ones of the client library say nothing.
fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
