use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Does work that blocks on a thread of the runtime for that.
///
/// Where the system has no thread to give, tokio's `spawn_blocking` and all that uses it, such as
/// `lookup_host` and `tokio::fs`, panic. That would end a task that makes a connection anew, and
/// nobody would make one any more. This fails instead, and can be tried again.
///
/// # Errors
///
/// If there is no thread: the work is then never begun. If the work panics, or the runtime ends
/// before it is done.
///
/// # Panics
///
/// Outside a tokio runtime.
///
/// # Cancel safety
///
/// Cancel-safe, in so far as work that has begun goes on, and nobody hears of its end.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkit_core::driver::blocking;
///
/// let sum = blocking(|| (1..=100).sum::<u32>()).await;
/// assert_eq!(sum.unwrap(), 5050);
/// # });
/// ```
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    start_blocking(work)?.await
}

/// Begins what [`blocking`] does, and waits for nothing. The work goes on if the future that
/// tells of its end is dropped.
///
/// # Errors
///
/// If there is no thread: the work is then never begun. The future has the other errors of
/// [`blocking`].
///
/// # Panics
///
/// Outside a tokio runtime.
pub fn start_blocking<T, W>(
    work: W,
) -> io::Result<impl Future<Output = io::Result<T>> + Send + use<T, W>>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let runtime = Handle::current();
    let outcome = start(work, |begin| drop(runtime.spawn_blocking(begin)))?;
    Ok(async {
        let ended = |_| io::Error::other("the work panicked, or its runtime has ended");
        outcome.await.map_err(ended)
    })
}

/// The same, where `spawn` panics if there is no thread.
fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>),
) -> io::Result<oneshot::Receiver<T>> {
    let (done, outcome) = oneshot::channel();
    // Where there is no thread, the runtime panics and yet keeps the work until it has one. By then
    // nobody knows of it any more, so it is taken back.
    let place = Arc::new(Mutex::new(Some((work, done))));
    let take = |place: &Mutex<Option<_>>| {
        // Nothing panics while it is locked.
        place.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let begin = {
        let place = Arc::clone(&place);
        move || {
            if let Some((work, done)) = take(&place) {
                // Whoever began it may have gone.
                _ = done.send(work());
            }
        }
    };
    let begun = catch_unwind(AssertUnwindSafe(|| spawn(Box::new(begin))));
    // Unless another thread became free at this moment.
    if begun.is_err() && take(&place).is_some() {
        let text = "the system has no thread left";
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
    }
    Ok(outcome)
}

/// The addresses of a host, by the system's resolver, on a [thread for that](blocking).
///
/// # Errors
///
/// If the resolver finds none, and as for [`blocking`].
///
/// # Panics
///
/// Outside a tokio runtime.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    blocking(move || Ok((host.as_str(), port).to_socket_addrs()?.collect())).await?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{blocking, look_up, start};

    #[test]
    fn work_that_there_is_no_thread_for_is_never_begun() {
        let (was_done, mut kept) = (Arc::new(AtomicBool::new(false)), None);
        let work = {
            let was_done = Arc::clone(&was_done);
            move || was_done.store(true, Ordering::Relaxed)
        };
        let started = start(work, |begin| {
            kept = Some(begin);
            panic!("planned");
        });
        assert!(started.is_err());
        kept.unwrap()();
        assert!(!was_done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn work_that_found_a_thread_after_all_is_waited_for() {
        let started = start(
            || 7,
            |begin| {
                begin();
                panic!("planned");
            },
        );
        assert_eq!(started.unwrap().await.unwrap(), 7);
    }

    #[tokio::test]
    async fn work_that_panics_ends_nothing_else() {
        let outcome = blocking(|| panic!("planned")).await;
        assert!(outcome.is_err_and(|error| error.to_string().contains("panic")));
    }

    #[tokio::test]
    async fn hosts_are_found_by_name_and_by_address() {
        for (host, address) in [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7")] {
            assert_eq!(look_up(host, 7).await.unwrap(), [address.parse().unwrap()]);
        }
        assert!(look_up("localhost", 7).await.unwrap().iter().all(|it| it.ip().is_loopback()));
        assert!(look_up("", 7).await.is_err());
    }
}
