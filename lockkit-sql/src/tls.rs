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
