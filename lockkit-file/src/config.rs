use std::path::PathBuf;

use lockkit_core::driver::{CALL_LIMIT, CallLimit};
use lockkit_core::{BackendUrl, Parameter, Result};

/// What the driver is called, and the scheme of its URLs.
pub(crate) const ID: &str = "file";

/// The parameters of a `file:` URL, beside the [common ones](lockkit_core::COMMON_PARAMETERS).
pub const PARAMETERS: &[Parameter] = &[CALL_LIMIT];

/// What a URL says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) folder: PathBuf,
    pub(crate) call_limit: CallLimit,
}

impl Config {
    pub(crate) fn from_url(url: &BackendUrl) -> Result<Self> {
        if url.scheme() != ID {
            return Err(url.error("the scheme of a folder of locks is `file`"));
        }
        let parameters = url.parameters(PARAMETERS)?;
        let call_limit = parameters.call_limit()?;
        if let Some(host) = url.hosts().first() {
            return Err(url.error(format!(
                "a folder of locks has no host; write `file:{host}{path}` for a path relative to \
                 the current directory, `file:///{host}{path}` for an absolute one",
                path = url.path()
            )));
        }
        if url.user().is_some() || url.password().is_some() {
            return Err(url.error("a folder of locks has no user and no password"));
        }
        match url.path() {
            "" => Err(url.error("it names no folder; write `file:/var/lib/app/locks`")),
            path => Ok(Self { folder: path.into(), call_limit }),
        }
    }
}
