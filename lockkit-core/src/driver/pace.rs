use std::time::Duration;

/// An interval is one pause long for each full hundred of waiting claims, and never less than one.
const MOST: usize = 100;

/// The polling interval of each of `waiting` claims of one driver, where a claim that is alone
/// polls every `pause`. Up to 199 keep that pace; where more wait, each polls less often, so that
/// the requests of a process do not grow with the number of locks that it waits for.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::driver::pause_among;
///
/// let second = Duration::from_secs(1);
/// assert_eq!([1, 199, 400].map(|waiting| pause_among(second, waiting)), [second, second, 4 * second]);
/// ```
#[must_use]
pub fn pause_among(pause: Duration, waiting: usize) -> Duration {
    pause.saturating_mul(u32::try_from(waiting / MOST).unwrap_or(u32::MAX).max(1))
}
