//! When to remove what nobody has used for a long time.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// The most rows of a table that a sweep removes; the statements contain the same number.
const PART: u64 = 1000;

/// How long others have the server to themselves after a sweep that has left some rows.
const PAUSE: Duration = Duration::from_secs(1);

/// How long to wait before a failed sweep is tried again.
const AFTER_A_FAILURE: Duration = Duration::from_secs(5 * 60);

/// Sweeps every hour. One time in fifty the first sweep comes at once, for applications whose
/// processes never get that old. A sweep removes some rows and returns how many it has found; it is
/// repeated each second while that is about as many as it may remove. Ends when the handle is
/// dropped.
pub(crate) fn keep_house<F, E>(sweep: impl Fn() -> F + Send + 'static) -> AbortOnDropHandle<()>
where
    F: Future<Output = Result<u64, E>> + Send,
    E: fmt::Display + Send,
{
    let waits = fastrand::u32(0..50) != 0;
    AbortOnDropHandle::new(tokio::spawn(async move {
        if waits {
            sleep(EVERY.mul_f64(fastrand::f64())).await;
        }
        loop {
            sleep(match sweep().await {
                // Rows that somebody has used in the meantime were left.
                Ok(found) if found >= PART / 2 => PAUSE.mul_f64(0.5 + fastrand::f64()),
                Ok(_) => EVERY,
                Err(failure) => {
                    tracing::debug!(%failure, "idle rows were not removed");
                    AFTER_A_FAILURE
                }
            })
            .await;
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use tokio::time::{Instant, sleep};

    use super::{EVERY, PART, keep_house};

    /// What the sweeps came to.
    #[derive(Clone, Copy, Debug, Default)]
    struct Rows {
        removed: u64,
        sweeps: u64,
        /// The most that a sweep found.
        most: u64,
    }

    /// How many rows are left after that many hours, if `at_first` were there and `arriving` more
    /// come each second; and what the sweeps came to.
    async fn after_hours(hours: u32, at_first: u64, arriving: u64) -> (u64, Rows) {
        let start = Instant::now();
        let rows = Arc::new(Mutex::new(Rows::default()));
        let arrived = move || at_first + start.elapsed().as_secs() * arriving;
        let house = keep_house({
            let rows = rows.clone();
            move || {
                let mut rows = rows.lock().unwrap();
                let left = arrived() - rows.removed;
                let part = left.min(PART);
                rows.removed += part;
                rows.sweeps += 1;
                rows.most = rows.most.max(left);
                async move { Ok::<_, Infallible>(part) }
            }
        });
        sleep(EVERY * hours + EVERY / 100).await;
        drop(house);
        let rows = *rows.lock().unwrap();
        (arrived() - rows.removed, rows)
    }

    #[tokio::test(start_paused = true)]
    async fn rows_are_removed_until_none_are_left() {
        let (left, rows) = after_hours(1, 9_500, 0).await;
        assert_eq!(left, 0);
        assert!(rows.sweeps >= 11, "{rows:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn many_rows_do_not_pile_up() {
        let (left, rows) = after_hours(10, 0, 200).await;
        let two_hours = 2 * 3_600 * 200;
        assert!(left < two_hours && rows.most < two_hours, "{left} are left: {rows:?}");
        // The server has its pauses.
        assert!(rows.sweeps < 10 * 3_600, "{rows:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn few_rows_are_swept_once_an_hour() {
        let (_, rows) = after_hours(10, 0, 0).await;
        assert!((10..=11).contains(&rows.sweeps), "{rows:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_in_minutes() {
        let tries = Arc::new(Mutex::new(0));
        let counted = tries.clone();
        let house = keep_house(move || {
            *counted.lock().unwrap() += 1;
            async { Err::<u64, _>("no connection") }
        });
        sleep(EVERY * 2).await;
        drop(house);
        let tries = *tries.lock().unwrap();
        assert!((12..=120).contains(&tries), "{tries}");
    }
}
