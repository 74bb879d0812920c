use std::fs::File;
use std::time::Duration;

use lockkit_core::driver::blocking;
use lockkit_core::{Parameters, Result};
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// How long a file may take to be opened. Connecting has a longer limit, which begins then.
const PATIENCE: Duration = Duration::from_secs(1);

/// Names the cryptography provider of this process, unless somebody has done so. It is for those who
/// check a certificate but not the host's name, and for nobody else.
///
/// For them alone, sqlx leaves it to rustls which provider checks the certificate: that of the
/// process. Where none is named, rustls names the one that is compiled in, or panics if there are
/// two. This names the one that sqlx uses for all the rest.
pub(crate) fn name_a_provider() {
    if CryptoProvider::get_default().is_none() {
        // If somebody else was faster, one is named as well.
        _ = ring::default_provider().install_default();
    }
}

/// Refuses a file with authorities where no certificate is checked against them.
pub(crate) fn check_authorities(
    parameters: &Parameters<'_>,
    name: &str,
    is_checked: bool,
    mode: &str,
) -> Result<()> {
    match parameters.text(name) {
        Some(_) if !is_checked => {
            Err(parameters.bad(name, format!("it is for `{mode}`; else no certificate is checked")))
        }
        _ => Ok(()),
    }
}

/// The file that a parameter names, opened here to see that it can be. The client reads it whenever
/// it makes a connection; its error would not say which file it was, and would pass for one of the
/// network.
pub(crate) async fn file<'p>(
    parameters: &'p Parameters<'_>,
    name: &str,
) -> Result<Option<&'p str>> {
    let Some(path) = parameters.text(name) else { return Ok(None) };
    let file = path.to_owned();
    // Neither a pipe nor a file system that is far away holds up other tasks.
    let opening = blocking(move || File::open(file).map(drop));
    let opened = match timeout(PATIENCE, opening).await {
        Ok(opened) => opened.and_then(|opened| opened),
        // It may do so yet, while the client connects.
        Err(_) => Ok(()),
    };
    match opened {
        Ok(()) => Ok(Some(path)),
        Err(error) => Err(parameters.bad(name, format!("{path}: {error}"))),
    }
}

/// What the unit tests of both drivers need.
#[cfg(test)]
pub(crate) mod testing {
    use std::env;
    use std::fs::OpenOptions;
    use std::path::PathBuf;
    use std::process::Command;

    use tempfile::TempDir;
    use tokio::task::spawn_blocking;

    /// Carries out the test that asks for this in a process of its own, where the variable has that
    /// value.
    pub(crate) fn alone(variable: &str, value: &str) {
        let this = std::thread::current().name().unwrap().to_owned();
        let mut alone = Command::new(env::current_exe().unwrap());
        let alone = alone.args(["--exact", &this]).env(variable, value);
        let output = alone.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// A file that is not opened before somebody writes to it.
    pub(crate) struct Pipe {
        pub(crate) path: PathBuf,
        _folder: TempDir,
    }

    impl Pipe {
        pub(crate) fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            Self { path, _folder: folder }
        }

        /// Lets go whoever waits for it; there has to be somebody.
        pub(crate) async fn open(&self) {
            let path = self.path.clone();
            let opening = spawn_blocking(move || OpenOptions::new().write(true).open(path));
            opening.await.unwrap().unwrap();
        }
    }
}
