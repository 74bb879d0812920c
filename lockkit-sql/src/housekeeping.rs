//! When to remove what nobody has used for long.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// Sweeps every hour; and one time in fifty at once, for applications whose processes never get
/// that old. Ends when the handle is dropped.
pub(crate) fn keep_house<F, E>(sweep: impl Fn() -> F + Send + 'static) -> AbortOnDropHandle<()>
where
    F: Future<Output = Result<(), E>> + Send,
    E: fmt::Display + Send,
{
    AbortOnDropHandle::new(tokio::spawn(async move {
        if fastrand::u32(0..50) != 0 {
            sleep(EVERY.mul_f64(fastrand::f64())).await;
        }
        loop {
            if let Err(failure) = sweep().await {
                tracing::debug!(%failure, "idle rows were not removed");
            }
            sleep(EVERY).await;
        }
    }))
}
