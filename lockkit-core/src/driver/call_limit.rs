use std::time::Duration;

use crate::driver::Claim;

/// How long one request may take: as long as the user has [set](crate::Parameters::call_limit), or
/// else as long as suits the request.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::driver::CallLimit;
///
/// assert_eq!(CallLimit::default().of_a_look(), Duration::from_secs(3));
/// let set = CallLimit::new(Duration::from_secs(10));
/// assert_eq!(set.of_a_look(), Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimit(Option<Duration>);

/// The longest that any request may take, unless the user has set another limit.
pub(crate) const LONGEST: Duration = Duration::from_secs(3);

impl CallLimit {
    /// The same limit for all requests.
    pub fn new(limit: Duration) -> Self {
        Self(Some(limit))
    }

    /// The limit for a request about that claim: [`Claim::call_limit`], unless the user has set
    /// another.
    pub fn of(self, claim: &Claim) -> Duration {
        self.0.unwrap_or(claim.call_limit())
    }

    /// The limit for a request by [`Inspect`](crate::driver::Inspect): 3 seconds, since there is no
    /// lease to go by, unless the user has set another.
    pub fn of_a_look(self) -> Duration {
        self.0.unwrap_or(LONGEST)
    }
}
