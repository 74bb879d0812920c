use std::time::Duration;

/// How many ask at the pace of one.
const MOST: usize = 100;

/// For how long each of so many that wait by one driver goes without asking, if one that is alone does
/// for `pause`. A hundred ask at that pace; where more wait, all ask less often, so that what a process
/// asks of a backend does not grow with the locks that it waits for.
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
