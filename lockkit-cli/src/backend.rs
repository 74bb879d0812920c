//! Where the locks are.

use std::env;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use lockkit::{BackendUrl, Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What stands for itself in the path of a URL.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// The URL that was given, or that of the environment, or that of this user's own locks.
pub(crate) fn url(given: Option<&OsStr>) -> Result<BackendUrl> {
    let from_environment = env::var_os("LOCKKIT_URL");
    let url: BackendUrl = match (given, from_environment.as_deref()) {
        (Some(url), _) => text(url, "--url")?.parse()?,
        // Also when it is empty: a variable that was not filled in must not mean other locks.
        (None, Some(url)) => text(url, "LOCKKIT_URL")?.parse()?,
        (None, None) => return embedded(),
    };
    if url.scheme() == "memory" {
        return Err(url.error("these locks end with the process that makes them, so that no other command ever meets them"));
    }
    Ok(url)
}

/// A database file, in a folder that is made here and belongs to this user alone.
fn embedded() -> Result<BackendUrl> {
    let wrong = |reason: String| Error::config("the default locks", reason);
    let folder = state_home()
        .ok_or_else(|| wrong("neither XDG_STATE_HOME nor HOME is an absolute path".into()))?
        .join("lockkit");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| wrong(format!("{}: {error}", folder.display())))?;
    let file = folder.join("locks.db");
    let path = text(file.as_os_str(), "the default locks")?;
    format!("sqlite:{}?ttl=10s", utf8_percent_encode(path, ENCODED)).parse()
}

/// As the XDG Base Directory Specification has it: relative paths do not count.
fn state_home() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}

fn text<'a>(value: &'a OsStr, what: &str) -> Result<&'a str> {
    value.to_str().ok_or_else(|| Error::config(what, "it is not UTF-8 text"))
}
