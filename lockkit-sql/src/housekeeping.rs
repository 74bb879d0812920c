//! When to remove what nobody has used for long.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// How often some of the rows are removed at once.
const MOST_PARTS: usize = 100;

/// Sweeps every hour; and one time in fifty at once, for applications whose processes never get
/// that old. A sweep removes some rows and says how many: it is repeated until there are none. Ends
/// when the handle is dropped.
pub(crate) fn keep_house<F, E>(sweep: impl Fn() -> F + Send + 'static) -> AbortOnDropHandle<()>
where
    F: Future<Output = Result<u64, E>> + Send,
    E: fmt::Display + Send,
{
    AbortOnDropHandle::new(tokio::spawn(async move {
        if fastrand::u32(0..50) != 0 {
            sleep(EVERY.mul_f64(fastrand::f64())).await;
        }
        loop {
            for _ in 0..MOST_PARTS {
                match sweep().await {
                    Ok(0) => break,
                    Ok(_) => (),
                    Err(failure) => {
                        tracing::debug!(%failure, "idle rows were not removed");
                        break;
                    }
                }
            }
            sleep(EVERY).await;
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tokio::time::sleep;

    use super::{EVERY, MOST_PARTS, keep_house};

    /// How many of so many rows are left after an hour, of which a sweep removes ten, and how many sweeps
    /// there were.
    async fn sweeps(rows: u64) -> (u64, u64) {
        let (left, sweeps) = (Arc::new(AtomicU64::new(rows)), Arc::new(AtomicU64::new(0)));
        let (rows, times) = (left.clone(), sweeps.clone());
        let house = keep_house(move || {
            times.fetch_add(1, Relaxed);
            let before = rows.load(Relaxed);
            rows.store(before.saturating_sub(10), Relaxed);
            async move { Ok::<_, Infallible>(before.min(10)) }
        });
        sleep(EVERY + EVERY / 100).await;
        drop(house);
        (left.load(Relaxed), sweeps.load(Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn rows_are_removed_until_none_are_left() {
        let (left, times) = sweeps(95).await;
        assert_eq!(left, 0);
        assert!(times >= 11, "{times}");
        let most = 2 * u64::try_from(MOST_PARTS).unwrap();
        let (left, times) = sweeps(1_000_000).await;
        assert!(left > 0 && times <= most, "{times}");
    }
}
