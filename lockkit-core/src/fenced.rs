use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::FencingToken;

/// A value that refuses holders who were overtaken: the check that makes a lock safe.
///
/// A holder can be paused at any time, for longer than its lease, without noticing. What protects
/// the data then is not the lock but the place where the data lives: it remembers the highest
/// [`FencingToken`] it has seen and refuses a smaller one. This is that place, in process; do the
/// same in your database in the statement that writes.
///
/// ```
/// # use lockkit_core::{FencedCell, Locker, memory::MemoryDriver};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = MemoryDriver::new();
/// let lock = Locker::new(backend.clone()).lock("stock")?;
/// let stock = FencedCell::new(10);
///
/// let paused = lock.acquire().await?;
/// let stale = paused.fencing_token().ok_or("no token")?;
/// backend.revoke(lock.name()); // what the end of its lease does to a holder that is paused
///
/// let next = lock.acquire().await?;
/// let token = next.fencing_token().ok_or("no token")?;
/// stock.write(token, |stock| *stock -= 1)?;
///
/// // The paused holder wakes up and goes on as if nothing had happened:
/// assert!(stock.write(stale, |stock| *stock -= 1).is_err());
/// assert_eq!(stock.read(|stock| *stock), 9);
/// # Ok(()) }
/// ```
///
/// A new holder that reads before it decides should [`touch`](Self::touch) first: only then is a
/// stale write that arrives between its read and its first write refused.
#[derive(Debug, Default)]
pub struct FencedCell<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug, Default)]
struct Inner<T> {
    highest: Option<FencingToken>,
    value: T,
}

impl<T> FencedCell<T> {
    /// A cell that has seen no token yet.
    pub fn new(value: T) -> Self {
        Self { inner: Mutex::new(Inner { highest: None, value }) }
    }

    /// Changes the value on behalf of the holder of `token`.
    ///
    /// # Errors
    ///
    /// [`Stale`], without calling `change`, if a later holder has been here.
    pub fn write<R>(
        &self,
        token: FencingToken,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Stale> {
        let mut inner = self.lock();
        match inner.highest {
            Some(highest) if highest > token => Err(Stale { token, highest }),
            _ => {
                inner.highest = Some(token);
                Ok(change(&mut inner.value))
            }
        }
    }

    /// Shuts out all earlier holders without changing the value.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a later holder has been here.
    pub fn touch(&self, token: FencingToken) -> Result<(), Stale> {
        self.write(token, |_| ())
    }

    /// Looks at the value, which anybody may do.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock().value)
    }

    /// A writer that panicked leaves the value as it is; what to make of it is up to the next one.
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A later holder has been here.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fencing token {token} is stale: {highest} was here already")]
pub struct Stale {
    /// The token that was refused.
    pub token: FencingToken,
    /// The highest token so far.
    pub highest: FencingToken,
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::{FencedCell, Stale};
    use crate::FencingToken;

    const EARLIER: FencingToken = FencingToken::new(1).unwrap();
    const LATER: FencingToken = FencingToken::new(2).unwrap();

    #[test]
    fn a_holder_writes_as_often_as_it_likes() {
        let cell = FencedCell::new(0);
        for _ in 0..3 {
            cell.write(EARLIER, |value| *value += 1).unwrap();
        }
        assert_eq!(cell.read(|value| *value), 3);
    }

    #[test]
    fn who_touches_shuts_out_those_before() {
        let cell = FencedCell::new("nothing");
        cell.touch(LATER).unwrap();
        let stale = Stale { token: EARLIER, highest: LATER };
        assert_eq!(cell.write(EARLIER, |value| *value = "stale"), Err(stale));
        assert_eq!(cell.touch(EARLIER), Err(stale));
        assert_eq!(cell.read(|value| *value), "nothing");
        assert_eq!(cell.touch(LATER), Ok(()));
    }

    #[test]
    fn a_writer_that_panics_has_been_there() {
        let cell = FencedCell::new("nothing");
        let write = AssertUnwindSafe(|| cell.write(LATER, |_| panic!("half way")));
        assert!(catch_unwind(write).is_err());
        assert!(cell.touch(EARLIER).is_err());
        assert_eq!(cell.write(LATER, |value| *value), Ok("nothing"));
    }
}
