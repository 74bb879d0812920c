//! How one session ends another, or the statement of another. `KILL` takes no parameter on MySQL 9,
//! so a variable of the session says which one is meant.

pub(super) const INTERRUPT: &str = "KILL QUERY @lockkit_session";
pub(super) const END: &str = "KILL @lockkit_session";

/// There is no session with that number.
pub(super) const NO_SUCH_SESSION: u16 = 1094;
/// The session is another user's.
pub(super) const NOT_ITS_OWNER: u16 = 1095;
