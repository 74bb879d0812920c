//! How one session ends another, or what that one does. `KILL` takes no parameter on MySQL 9, so which
//! one is a variable of the session.

pub(super) const INTERRUPT: &str = "KILL QUERY @lockkit_session";
pub(super) const END: &str = "KILL @lockkit_session";

/// There is none of that number.
pub(super) const NO_SUCH_SESSION: u16 = 1094;
/// It is another user's.
pub(super) const NOT_ITS_OWNER: u16 = 1095;
