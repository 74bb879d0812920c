use std::path::PathBuf;

use lockkit_core::driver::{CALL_LIMIT, CallLimit};
use lockkit_core::{BackendUrl, Parameter, Result};

/// The id of the driver, and the scheme of its URLs.
pub(super) const ID: &str = "sqlite";

/// The parameters of an SQLite URL, besides the [common ones](lockkit_core::COMMON_PARAMETERS).
pub const PARAMETERS: &[Parameter] = &[CALL_LIMIT];

/// What a URL says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) path: PathBuf,
    pub(super) call_limit: CallLimit,
}

impl Config {
    pub(super) fn from_url(url: &BackendUrl) -> Result<Self> {
        if url.scheme() != ID {
            return Err(url.error("the scheme of an SQLite database is `sqlite`"));
        }
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        if let Some(host) = url.hosts().first() {
            return Err(url.error(format!(
                "an SQLite database has no host; write `sqlite:{host}{path}` for a path relative \
                 to the current directory, `sqlite:///{host}{path}` for an absolute one",
                path = url.path()
            )));
        }
        if url.user().is_some() || url.password().is_some() {
            return Err(url.error("an SQLite database has no user and no password"));
        }
        match url.path() {
            "" => Err(url.error("it names no file; write `sqlite:/var/lib/app/locks.db`")),
            ":memory:" => Err(url.error(
                "a database in memory is seen by one connection only; write `memory:` for locks \
                 within one process",
            )),
            path => Ok(Self { path: path.into(), call_limit }),
        }
    }
}
