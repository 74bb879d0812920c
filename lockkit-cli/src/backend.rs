//! Where the locks are.

use std::env;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use std::time::Duration;

use lockkit::{BackendUrl, Error, Locker, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::args::Place;
use crate::exit;
use crate::report::{self, Volume, chain, say};

/// How long the backend may take to forget this process. What it has not forgotten runs out.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(5);

/// Connects, lets `work` look at locks, and returns the exit code: its own, or that of an error.
pub(crate) fn at(place: &Place, work: impl AsyncFnOnce(&Locker) -> Result<u8>) -> u8 {
    report::listen(Volume::Errors);
    let outcome = block_on(async {
        let locker = lockkit::connect_url(&url(place)?).await?;
        let outcome = work(&locker).await;
        // Nothing of ours is left there; this only says goodbye.
        _ = timeout(CLEAN_UP, locker.shutdown()).await;
        outcome
    });
    outcome.flatten().unwrap_or_else(|error| failed(&error))
}

/// Says what went wrong, and returns the exit code.
pub(crate) fn failed(error: &Error) -> u8 {
    say(chain(error));
    exit::of_error(error, exit::CONFLICT)
}

/// Does `work` on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::config("this process", error.to_string()))?;
    let outcome = runtime.block_on(work);
    // Without waiting for a name that is still being looked up.
    runtime.shutdown_background();
    Ok(outcome)
}

/// What is encoded in the path of a URL, since it does not stand for itself there.
pub(crate) const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// What errors call the locks that are meant where there is no URL.
pub(crate) const DEFAULT: &str = "the default locks";

/// Where the URL is that is not given.
pub(crate) const VARIABLE: &str = "LOCKKIT_URL";

/// The URL that was given, or that of the environment, or that of this user's own locks.
pub(crate) fn url(place: &Place) -> Result<BackendUrl> {
    let url: BackendUrl = match &place.url {
        Some(url) => text(url, "--url")?.parse()?,
        None => match of_environment()? {
            Some(url) => url.parse()?,
            None => return embedded(),
        },
    };
    match url.scheme() {
        "memory" => Err(url.error("these locks end with the process that makes them, so that no other command ever meets them")),
        // The only driver that this command may be without. The library's advice is for its own
        // users.
        "etcd" | "etcds" if cfg!(not(feature = "etcd")) => {
            Err(url.error("this command was built without etcd; docs/command.md has how to build one with it"))
        }
        _ => Ok(url),
    }
}

/// The URL of the environment, if there is one.
pub(crate) fn of_environment() -> Result<Option<String>> {
    match env::var_os(VARIABLE) {
        None => Ok(None),
        // A variable that was not filled in must not mean other locks.
        Some(url) if url.is_empty() => {
            Err(Error::config(VARIABLE, "it is empty; give it a URL, or unset it"))
        }
        Some(url) => text(&url, VARIABLE).map(|url| Some(url.into())),
    }
}

/// A database file, in a folder that is made here and belongs to this user alone.
fn embedded() -> Result<BackendUrl> {
    let wrong = |reason: String| Error::config(DEFAULT, reason);
    let folder = state_home()
        .ok_or_else(|| wrong("neither XDG_STATE_HOME nor HOME is an absolute path".into()))?
        .join("lockkit");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| wrong(format!("{}: {error}", folder.display())))?;
    let file = folder.join("locks.db");
    let path = text(file.as_os_str(), DEFAULT)?;
    format!("sqlite:{}?ttl=10s", utf8_percent_encode(path, ENCODED)).parse()
}

/// As the XDG Base Directory Specification has it: relative paths do not count.
fn state_home() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}

pub(crate) fn text<'a>(value: &'a OsStr, what: &str) -> Result<&'a str> {
    value.to_str().ok_or_else(|| Error::config(what, "it is not UTF-8 text"))
}
