use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use crate::Error;

/// What a holder or waiter calls itself, for people who look at locks. It decides nothing.
///
/// It is the host's name and the process id, such as `web-3:4711`, unless the
/// [locker](crate::LockerBuilder::label) or the [lock](crate::Lock::labelled) is told otherwise.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label, in bytes.
    pub const MAX_LEN: usize = 128;

    /// Checks `label`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it is empty, longer than 128 bytes, or has a control character.
    pub fn new(label: &str) -> Result<Self, Error> {
        if label.is_empty() || label.len() > Self::MAX_LEN || label.chars().any(char::is_control) {
            let reason = "it is not 1 to 128 bytes of text without control characters";
            return Err(Error::config("label", reason));
        }
        Ok(Self(label.into()))
    }

    /// What a backend has kept as a label; `None` if it is none.
    pub(crate) fn read(text: impl AsRef<[u8]>) -> Option<Self> {
        Self::new(std::str::from_utf8(text.as_ref()).ok()?).ok()
    }

    /// Host and process id.
    pub fn of_this_process() -> Self {
        static THIS: LazyLock<Label> = LazyLock::new(|| {
            let system = rustix::system::uname();
            let host = system.nodename().to_string_lossy();
            let host: String = host.chars().filter(|c| !c.is_control()).collect();
            let id = std::process::id().to_string();
            // A host's name has at most 64 bytes on Linux, where the last ones may be all that tells
            // the containers of a service apart, and 255 on macOS.
            let room = Label::MAX_LEN - 1 - id.len();
            let host = &host[..host.floor_char_boundary(room)];
            Label(format!("{host}:{id}").into())
        });
        THIS.clone()
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = Error;

    fn from_str(label: &str) -> Result<Self, Error> {
        Self::new(label)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
