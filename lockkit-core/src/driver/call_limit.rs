use std::time::Duration;

use crate::driver::Claim;

/// For how long one request may take: as the user has [set](crate::Parameters::call_limit), else as
/// fits what is asked.
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

/// Of whatever is asked, unless the user has set another.
pub(crate) const LONGEST: Duration = Duration::from_secs(3);

impl CallLimit {
    /// The same for all requests.
    pub fn new(limit: Duration) -> Self {
        Self(Some(limit))
    }

    /// Of a request about that claim: unless it is set, as [`Claim::call_limit`] has it.
    pub fn of(self, claim: &Claim) -> Duration {
        self.0.unwrap_or(claim.call_limit())
    }

    /// Of a request by [`Inspect`](crate::driver::Inspect): 3 seconds unless it is set, since there is
    /// no lease to go by.
    pub fn of_a_look(self) -> Duration {
        self.0.unwrap_or(LONGEST)
    }
}
