//! Which servers to trust and what to show them, according to files that may be replaced.

use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Identity, TlsOptions};
use lockkit_core::driver::LastGood;
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
    /// Says what cannot be read, in a text that names the file.
    pub(crate) async fn of(files: Files) -> Result<Self, String> {
        let last = LastGood::new(files.read().await?);
        Ok(Self { files, last })
    }

    /// What to connect with. The files are read again each time, since certificates are replaced
    /// before they expire. If one of them is just being written, what there was before remains in
    /// use.
    pub(crate) async fn options(&self) -> TlsOptions {
        let read = match self.files.read().await {
            Ok(options) => checked(options).await,
            Err(problem) => Err(problem),
        };
        let (options, problem) = self.last.or_last(read);
        if let Some(problem) = problem {
            tracing::debug!(%problem, "the certificates that there were are used again");
        }
        options
    }
}

impl Files {
    async fn read(&self) -> Result<TlsOptions, String> {
        let mut options = match &self.roots {
            Some(file) => {
                TlsOptions::new().ca_certificate(Certificate::from_pem(read(file).await?))
            }
            None => TlsOptions::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            options =
                options.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
        }
        Ok(options)
    }
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(file).await.map_err(|error| format!("{}: {error}", file.display()))
}

/// The options, if there are certificates in them, and the key to the client's. To find out may
/// take some milliseconds of work, if the system's certificates are read for it.
async fn checked(options: TlsOptions) -> Result<TlsOptions, String> {
    let checking = tokio::task::spawn_blocking(move || {
        let checked = Endpoint::from_static("https://localhost").tls_config(options.clone());
        checked.map(|_| options).map_err(|problem| problem.to_string())
    });
    checking.await.unwrap_or_else(|stopped| Err(stopped.to_string()))
}
