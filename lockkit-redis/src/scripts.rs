//! The scripts that the driver runs on a server that is not a member of a cluster, as text: to be
//! read, loaded beforehand, or measured. Their names and arguments belong to the release of this
//! crate that sends them.

use crate::script::{RELEASE, TAKE};

/// Takes a lock, or a place among those who wait for it.
pub fn take() -> &'static str {
    TAKE.code()
}

/// Releases a lock and tells or serves whoever is next, or gives up the place.
pub fn release() -> &'static str {
    RELEASE.code()
}
