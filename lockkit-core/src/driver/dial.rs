use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::select;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long an address is tried before the next one is tried, too.
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to whichever address of a host is there first. The next address is tried when one
/// fails, or after a while, since the one before may swallow what is sent to it.
///
/// # Errors
///
/// If no address could be connected to: the error of the last attempt to fail.
///
/// # Cancel safety
///
/// Cancel-safe: what was begun is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::io;
///
/// use lockkit_core::driver::dial_first;
///
/// let connect = |address: &'static str| async move {
///     if address == "::1" { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(address) }
/// };
/// assert_eq!(dial_first(["::1", "127.0.0.1"], connect).await.unwrap(), "127.0.0.1");
/// # });
/// ```
pub async fn dial_first<A, F, S>(
    addresses: impl IntoIterator<Item = A>,
    connect: impl Fn(A) -> F,
) -> io::Result<S>
where
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: Send + 'static,
{
    let mut attempts = addresses.into_iter().map(connect);
    let mut under_way = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        if let Some(attempt) = attempts.next() {
            under_way.spawn(attempt);
        }
        if under_way.is_empty() {
            return Err(last);
        }
        select! {
            Some(attempt) = under_way.join_next() => match attempt? {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            },
            () = sleep(HEAD_START) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;

    use super::dial_first;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Address {
        Swallows,
        Refuses,
        Serves,
    }
    use Address::{Refuses, Serves, Swallows};

    async fn dial(addresses: &[Address]) -> io::Result<Address> {
        let connect = |address| async move {
            match address {
                Swallows => pending().await,
                Refuses => Err(io::ErrorKind::ConnectionRefused.into()),
                Serves => Ok(Serves),
            }
        };
        dial_first(addresses.iter().copied(), connect).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_swallows_or_refuses_leaves_the_next() {
        for addresses in [[Swallows, Swallows, Serves], [Refuses, Swallows, Serves]] {
            assert_eq!(dial(&addresses).await.unwrap(), Serves);
        }
        let refused = dial(&[Refuses, Refuses]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(dial(&[]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
