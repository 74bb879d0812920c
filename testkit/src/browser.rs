use std::path::PathBuf;

use crate::Unavailable;
use crate::backend::find_program;

/// What tests that want a browser are called in `LOCKKIT_REQUIRE_TOOLS`.
pub(crate) const BROWSER: &str = "browser";

/// The program of a browser that speaks the DevTools protocol over a pipe.
///
/// # Errors
/// [`Unavailable`] if none is in `PATH`.
pub fn browser() -> Result<PathBuf, Unavailable> {
    const PROGRAMS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
    let found = PROGRAMS.iter().find_map(|name| find_program(name, Vec::new(), |_| true));
    found.ok_or(Unavailable::Missing { backend: BROWSER, programs: PROGRAMS })
}
