use std::fs::File;

use lockkit_core::{Parameters, Result};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Names the cryptography provider of this process, unless somebody has done so.
///
/// To check a certificate but not the host's name, sqlx asks for the provider of the process; where
/// two are compiled in and none is named, that panics. This names the one that sqlx uses otherwise.
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
pub(crate) fn file<'p>(parameters: &'p Parameters<'_>, name: &str) -> Result<Option<&'p str>> {
    let Some(path) = parameters.text(name) else { return Ok(None) };
    match File::open(path) {
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(parameters.bad(name, format!("{path}: {error}"))),
    }
}
