use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::timeout;

/// Looks at the queues of locks, or at whatever has a key, with each look shared by all who ask at
/// the same time: the more of them there are, the longer the queue that they look at.
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
///
/// use lockkit_core::driver::Looks;
///
/// # async fn example() -> Result<(), Infallible> {
/// let looks = Looks::default();
/// let line = looks.join("orders");
/// assert!(line.is_alone());
/// let patience = Duration::from_secs(1);
/// let queue = line.look(patience, async || Ok::<_, Infallible>(["first", "second"])).await?;
/// assert_eq!(queue[0], "first");
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(example()).unwrap();
/// ```
pub struct Looks<T>(Mutex<HashMap<Box<str>, Weak<Look<T>>>>);

/// A place in the line of those who look at the same key.
#[derive(Debug)]
pub struct Line<T>(Arc<Look<T>>);

#[derive(Debug)]
struct Look<T> {
    /// How many looks were begun.
    begun: Mutex<u64>,
    /// What the last look that was answered has found, and its number.
    last: tokio::sync::Mutex<Option<(u64, Arc<T>)>>,
}

impl<T> Looks<T> {
    /// Joins those who look at what has this key, until the line is dropped.
    pub fn join(&self, key: &str) -> Line<T> {
        let mut looks = self.all();
        if let Some(look) = looks.get(key).and_then(Weak::upgrade) {
            return Line(look);
        }
        looks.retain(|_, look| look.strong_count() > 0);
        let look = Arc::new(Look { begun: Mutex::default(), last: tokio::sync::Mutex::default() });
        looks.insert(key.into(), Arc::downgrade(&look));
        Line(look)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Box<str>, Weak<Look<T>>>> {
        // No step under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Line<T> {
    /// Whether nobody else is in the line.
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// What there is to see, by a look that was begun after this was called. While another look is
    /// under way, those who ask gather for the next one, but nobody for longer than its `patience`:
    /// after that it looks by itself, since whoever looks for the others may not be polled for a
    /// while.
    ///
    /// # Errors
    ///
    /// The error of `look`; the others in line look for themselves.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next in line looks.
    pub async fn look<E, F: Future<Output = Result<T, E>>>(
        &self,
        patience: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<Arc<T>, E> {
        let begun_before = *self.begun();
        let Ok(mut last) = timeout(patience, self.0.last.lock()).await else {
            return look().await.map(Arc::new);
        };
        if let Some((number, seen)) = &*last
            && *number > begun_before
        {
            return Ok(Arc::clone(seen));
        }
        let number = {
            let mut begun = self.begun();
            *begun += 1;
            *begun
        };
        let seen = Arc::new(look().await?);
        *last = Some((number, Arc::clone(&seen)));
        Ok(seen)
    }

    fn begun(&self) -> MutexGuard<'_, u64> {
        // No step under the lock panics.
        self.0.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for Looks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::time::Duration;

    use tokio::select;
    use tokio::sync::oneshot;

    use super::Looks;

    type Answer = Result<&'static str, Infallible>;

    const PATIENCE: Duration = Duration::from_secs(1);

    async fn is_pending(future: impl Future) -> bool {
        select! {
            biased;
            _ = future => false,
            () = ready(()) => true,
        }
    }

    #[tokio::test]
    async fn who_asks_while_a_look_is_under_way_shares_the_next() {
        let looks = Looks::default();
        let (one, two, three) = (looks.join("a"), looks.join("a"), looks.join("a"));
        let (answer, first) = oneshot::channel::<()>();
        let mut one = pin!(one.look(PATIENCE, async || {
            first.await.unwrap();
            Answer::Ok("first")
        }));
        assert!(is_pending(&mut one).await);
        let mut two = pin!(two.look(PATIENCE, || ready(Answer::Ok("second"))));
        let mut three = pin!(three.look(PATIENCE, || ready(Answer::Ok("third"))));
        assert!(is_pending(&mut two).await && is_pending(&mut three).await);
        answer.send(()).unwrap();
        let (Ok(one), Ok(two), Ok(three)) = (one.await, two.await, three.await);
        assert_eq!((*one, *two, *three), ("first", "second", "second"));
    }

    #[tokio::test]
    async fn a_look_that_is_given_up_serves_nobody() {
        let looks = Looks::default();
        let (one, two) = (looks.join("a"), looks.join("a"));
        let mut one = Box::pin(one.look(PATIENCE, pending::<Answer>));
        assert!(is_pending(&mut one).await);
        let mut two = pin!(two.look(PATIENCE, || ready(Answer::Ok("second"))));
        assert!(is_pending(&mut two).await);
        drop(one);
        let Ok(two) = two.await;
        assert_eq!(*two, "second");
    }

    #[tokio::test]
    async fn a_look_that_fails_fails_for_one() {
        let looks = Looks::default();
        let (one, two) = (looks.join("a"), looks.join("a"));
        let (answer, first) = oneshot::channel::<()>();
        let mut one = pin!(one.look(PATIENCE, async || { first.await.map(|()| "first") }));
        assert!(is_pending(&mut one).await);
        let mut two = pin!(two.look(PATIENCE, || ready(Answer::Ok("second"))));
        assert!(is_pending(&mut two).await);
        drop(answer);
        assert!(one.await.is_err());
        let Ok(two) = two.await;
        assert_eq!(*two, "second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_stands_still_holds_nobody_up_for_long() {
        let looks = Looks::default();
        let (one, two) = (looks.join("a"), looks.join("a"));
        let mut one = pin!(one.look(PATIENCE, pending::<Answer>));
        assert!(is_pending(&mut one).await);
        let Ok(two) = two.look(PATIENCE, || ready(Answer::Ok("second"))).await;
        assert_eq!(*two, "second");
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let looks = Looks::<()>::default();
        for key in ["a", "b", "c"] {
            assert!(looks.join(key).is_alone());
        }
        assert_eq!(looks.all().len(), 1);
    }
}
