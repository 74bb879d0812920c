use std::fs::File;

use lockkit_core::{Parameters, Result};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Names the cryptography of this process, unless somebody has.
///
/// To check a certificate and not the host's name, sqlx asks for that of the process, and where two
/// are compiled in and none is named, that panics. It names the one that it uses otherwise.
pub(crate) fn name_a_provider() {
    if CryptoProvider::get_default().is_none() {
        // Whoever was faster has named one as well.
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

/// The file that a parameter names. It is read whenever a connection is made, by the client, whose
/// error would not say which file that was, and would pass for one of the network.
pub(crate) fn file<'p>(parameters: &'p Parameters<'_>, name: &str) -> Result<Option<&'p str>> {
    let Some(path) = parameters.text(name) else { return Ok(None) };
    match File::open(path) {
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(parameters.bad(name, format!("{path}: {error}"))),
    }
}
