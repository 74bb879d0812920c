//! News for waiters: that a lock was let go, as far as the kernel tells.

use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod inotify;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use inotify::News;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use silence::News;

/// Whether a release is told of on this system.
pub(crate) const ARE_TOLD: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// How long a waiter that hears nothing may go without asking. Not every end of a hold is told of.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// What came of listening for a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    expect(dead_code, reason = "nothing is told of")
)]
pub(crate) enum Listening {
    /// A release has been listened for since the call before, at the file that is at the path.
    Still,
    /// A release is listened for from now on.
    FromNow,
    /// Nothing is heard for now.
    Deaf,
}

/// Where nothing is told of, so that waiters poll.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod silence {
    use std::path::Path;

    use lockkit_core::driver::{Change, OwnerId};

    use super::Listening;

    #[derive(Debug)]
    pub(crate) struct News;

    impl News {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn listen(&self, _: OwnerId, _: &Path) -> Listening {
            Listening::Deaf
        }

        pub(crate) fn are_in_vain(&self, _: OwnerId) -> bool {
            false
        }

        pub(crate) fn leave(&self, _: OwnerId) {}

        pub(crate) async fn changed(&self, _: OwnerId) -> Change {
            std::future::pending().await
        }

        pub(crate) fn close(&self) {}
    }
}
