use std::fmt;
use std::time::Duration;

use crate::LockName;
use crate::driver::{DriverError, ErrorKind};

/// What lockkit's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a client library said.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a lock operation failed. An error about a lock at its backend names the lock, the driver and
/// what was attempted; an error about a URL, an option or the whole locker names that.
///
/// ```
/// # use lockkit_core as lockkit;
/// use lockkit::{Error, Lock, LockGuard};
///
/// /// `None` if it is to be tried again later.
/// async fn enter(lock: &Lock) -> Result<Option<LockGuard>, Error> {
///     match lock.acquire().await {
///         Ok(guard) => Ok(Some(guard)),
///         Err(error) if error.is_transient() => {
///             // The message names the lock; what the backend's client said is the source.
///             let source = std::error::Error::source(&error);
///             eprintln!("{error}: {source:?}");
///             Ok(None)
///         }
///         // A password, a right, a set-up: somebody has to do something.
///         Err(error) => Err(error),
///     }
/// }
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another owner holds the lock, or waits for it in a queue, and the caller would not wait.
    #[error("lock `{name}` is taken ({driver})")]
    #[non_exhaustive]
    Taken {
        /// The name of the lock.
        name: LockName,
        /// The id of the driver.
        driver: &'static str,
    },
    /// The lock was not acquired within the time that the caller would wait: it stayed taken, or
    /// the backend did not answer.
    #[error("lock `{name}` was not acquired within {waited:?} ({driver})")]
    #[non_exhaustive]
    TimedOut {
        /// The name of the lock.
        name: LockName,
        /// The id of the driver.
        driver: &'static str,
        /// How long the caller would wait.
        waited: Duration,
        /// Why the lock was not acquired, if nobody is known to have kept it: what the backend's
        /// client last said, if it failed, or that there was no answer at all.
        source: Option<BoxError>,
    },
    /// The hold ended before it was released.
    #[error("lock `{name}` was lost before it was released ({driver})")]
    #[non_exhaustive]
    Lost {
        /// The name of the lock.
        name: LockName,
        /// The id of the driver.
        driver: &'static str,
    },
    /// The backend cannot be reached or does not answer.
    #[error(transparent)]
    Unreachable(Failure),
    /// The backend denies access: a wrong password, a missing right.
    #[error(transparent)]
    Denied(Failure),
    /// The backend has no room.
    #[error(transparent)]
    Capacity(Failure),
    /// Something else lives where the lock should be.
    #[error(transparent)]
    Foreign(Failure),
    /// The backend cannot be used as it is set up.
    #[error(transparent)]
    Misconfigured(Failure),
    /// The driver does not offer what was asked for, and has done none of it.
    #[error("{driver} does not support {what}")]
    #[non_exhaustive]
    Unsupported {
        /// The lock that was asked about, if it was a request about one.
        name: Option<LockName>,
        /// The id of the driver.
        driver: &'static str,
        /// What it does not support.
        what: String,
        /// Why it does not, if a request found that out.
        source: Option<BoxError>,
    },
    /// The name cannot be used.
    #[error("lock name {} is not valid: {reason}", beginning(name))]
    #[non_exhaustive]
    InvalidName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A URL, a parameter or an option cannot be used.
    #[error("{what}: {reason}")]
    #[non_exhaustive]
    Config {
        /// What cannot be used.
        what: String,
        /// Why.
        reason: String,
    },
    /// The locker was shut down, or the runtime that its keepers ran on has ended.
    #[error("the {driver} locker was shut down, or its runtime has ended")]
    #[non_exhaustive]
    ShutDown {
        /// The id of the driver.
        driver: &'static str,
    },
}

impl Error {
    /// A part of the configuration that cannot be used.
    pub fn config(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config { what: what.into(), reason: reason.into() }
    }

    /// A feature that `driver` does not have.
    pub fn unsupported(driver: &'static str, what: impl Into<String>) -> Self {
        Self::Unsupported { name: None, driver, what: what.into(), source: None }
    }

    /// What a driver said while it was being connected, before there was any lock.
    pub fn connecting(driver: &'static str, error: DriverError) -> Self {
        Self::of_driver(driver, Operation::Connect, None, error)
    }

    /// The driver that the error names, if it names one.
    pub fn driver(&self) -> Option<&'static str> {
        match self {
            Self::Taken { driver, .. }
            | Self::TimedOut { driver, .. }
            | Self::Lost { driver, .. }
            | Self::Unsupported { driver, .. }
            | Self::ShutDown { driver } => Some(driver),
            Self::Unreachable(failure)
            | Self::Denied(failure)
            | Self::Capacity(failure)
            | Self::Foreign(failure)
            | Self::Misconfigured(failure) => Some(failure.driver),
            Self::InvalidName { .. } | Self::Config { .. } => None,
        }
    }

    /// The lock that the error is about, if it is about one.
    pub fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Taken { name, .. } | Self::TimedOut { name, .. } | Self::Lost { name, .. } => {
                Some(name)
            }
            Self::Unreachable(failure)
            | Self::Denied(failure)
            | Self::Capacity(failure)
            | Self::Foreign(failure)
            | Self::Misconfigured(failure) => failure.name.as_ref(),
            Self::Unsupported { name, .. } => name.as_ref(),
            Self::InvalidName { .. } | Self::Config { .. } | Self::ShutDown { .. } => None,
        }
    }

    /// Whether the same call may succeed later without anybody doing anything about it. It is the
    /// call that may be repeated, such as an acquisition: a [release](crate::LockGuard::release)
    /// that fails is no reason to repeat the work under the lock.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Taken { .. } | Self::TimedOut { .. } | Self::Unreachable(_))
    }

    pub(crate) fn of_driver(
        driver: &'static str,
        operation: Operation,
        name: Option<LockName>,
        error: DriverError,
    ) -> Self {
        let kind = error.kind();
        let failure = Failure { driver, operation, name, kind, source: error.into_source() };
        match kind {
            ErrorKind::Unknown | ErrorKind::Unreachable => Self::Unreachable(failure),
            ErrorKind::Denied => Self::Denied(failure),
            ErrorKind::Capacity => Self::Capacity(failure),
            ErrorKind::Misconfigured => Self::Misconfigured(failure),
            ErrorKind::Foreign => Self::Foreign(failure),
            ErrorKind::Unsupported => match failure {
                Failure { name: Some(name), source, .. } => Self::Unsupported {
                    what: format!("this ({operation} lock `{name}`)"),
                    name: Some(name),
                    driver,
                    source: Some(source),
                },
                Failure { source, .. } => Self::unsupported(driver, source.to_string()),
            },
        }
    }
}

/// As much of a text as can be read in one line: what is not a name may be of any length.
pub(crate) fn beginning(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// What failed, and where.
#[non_exhaustive]
#[derive(Debug)]
pub struct Failure {
    /// The id of the driver.
    pub driver: &'static str,
    /// What was attempted.
    pub operation: Operation,
    /// The lock that it was about; `None` if it was about the backend as a whole.
    pub name: Option<LockName>,
    /// What kind of failure the driver reported.
    pub kind: ErrorKind,
    /// What the backend's client said.
    pub source: BoxError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, operation, name, kind, .. } = self;
        match name {
            Some(name) => write!(f, "{driver} could not {operation} lock `{name}`: {kind}"),
            None => write!(f, "{driver} could not {operation}: {kind}"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// What was attempted.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Connecting to the backend.
    Connect,
    /// Taking the lock.
    Acquire,
    /// Keeping the lock.
    Renew,
    /// Letting go of the lock.
    Release,
    /// Making a hold outlive its process.
    Share,
    /// Looking at locks or at the backend.
    Inspect,
    /// Ending somebody's hold.
    Break,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Share => "share",
            Self::Inspect => "inspect",
            Self::Break => "break",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use crate::driver::{DriverError, ErrorKind};
    use crate::{Error, LockName, Namespace, Operation};

    #[test]
    fn a_name_of_any_length_is_told_in_a_line() {
        let told = |name: &str| LockName::new(&Namespace::default(), name).unwrap_err().to_string();
        assert!(told("a\nb").starts_with(r#"lock name "a\nb" is not valid: "#));
        assert!(told(&"ü".repeat(5000)).len() < 400);
        assert!(Namespace::new(&"n".repeat(5000)).unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn what_a_driver_does_not_support_names_the_lock_and_the_operation() {
        let name = LockName::new(&Namespace::default(), "orders").unwrap();
        let error = DriverError::new(ErrorKind::Unsupported, "another program holds it");
        let error = Error::of_driver("postgres", Operation::Break, Some(name.clone()), error);
        assert_eq!(error.to_string(), "postgres does not support this (break lock `orders`)");
        assert_eq!(error.lock(), Some(&name));
        assert_eq!(error.source().unwrap().to_string(), "another program holds it");
    }

    #[test]
    fn what_may_pass_by_itself_is_transient() {
        use ErrorKind::*;
        for kind in [Unknown, Unreachable, Denied, Capacity, Misconfigured, Foreign, Unsupported] {
            let error = Error::connecting("postgres", DriverError::new(kind, "a reason"));
            assert_eq!(error.is_transient(), matches!(kind, Unknown | Unreachable), "{error}");
            assert_eq!(error.is_transient(), kind.is_transient(), "{error}");
        }
        let (name, driver) = (LockName::new(&Namespace::default(), "orders").unwrap(), "postgres");
        assert!(Error::Taken { name: name.clone(), driver }.is_transient());
        assert!(!Error::Lost { name, driver }.is_transient());
        assert!(!Error::ShutDown { driver }.is_transient());
    }
}
