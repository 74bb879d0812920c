use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Failure;

/// The nodes of a lock in the order in which they are served, unless something is there that is none
/// of them.
pub(crate) type Queue = Result<Vec<String>, Failure>;

/// Looks at queues, each for all who ask for it at the same time: a queue is as long as those who
/// ask are many.
#[derive(Debug, Default)]
pub(crate) struct Lists(Mutex<HashMap<Box<str>, Weak<List>>>);

#[derive(Debug, Default)]
struct List {
    /// How many looks were begun.
    begun: Mutex<u64>,
    /// What the last one that was answered found, and its number.
    last: tokio::sync::Mutex<Option<(u64, Arc<Queue>)>>,
}

impl Lists {
    /// The queue in the folder, by a look that was begun after this was called. While another one is
    /// under way, those who ask gather for the next.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next in line looks.
    pub(crate) async fn look<E>(
        &self,
        folder: &str,
        look: impl Future<Output = Result<Queue, E>>,
    ) -> Result<Arc<Queue>, E> {
        let list = self.of(folder);
        let begun_before = *list.begun();
        let mut last = list.last.lock().await;
        if let Some((number, queue)) = &*last
            && *number > begun_before
        {
            return Ok(Arc::clone(queue));
        }
        let number = {
            let mut begun = list.begun();
            *begun += 1;
            *begun
        };
        let queue = Arc::new(look.await?);
        *last = Some((number, Arc::clone(&queue)));
        Ok(queue)
    }

    fn of(&self, folder: &str) -> Arc<List> {
        // No step under the lock panics.
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(folder).and_then(Weak::upgrade) {
            return list;
        }
        lists.retain(|_, list| list.strong_count() > 0);
        let list = Arc::default();
        lists.insert(folder.into(), Arc::downgrade(&list));
        list
    }
}

impl List {
    fn begun(&self) -> MutexGuard<'_, u64> {
        // No step under the lock panics.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};
    use std::task::Poll;

    use futures_util::poll;
    use tokio::pin;
    use tokio::sync::oneshot;

    use super::{Lists, Queue};
    use crate::error::Failure;

    type Answer = Result<Queue, Infallible>;

    fn named(name: &str) -> Answer {
        Ok(Err(Failure::Foreign(name.into())))
    }

    fn name(queue: &Queue) -> String {
        queue.as_ref().unwrap_err().to_string()
    }

    #[tokio::test]
    async fn who_asks_while_a_look_is_under_way_shares_the_next() {
        let lists = Lists::default();
        let (answer, first) = oneshot::channel::<()>();
        let one = lists.look("a", async {
            first.await.unwrap();
            named("first")
        });
        pin!(one);
        assert!(poll!(&mut one).is_pending());
        let (two, three) =
            (lists.look("a", ready(named("second"))), lists.look("a", ready(named("third"))));
        pin!(two, three);
        assert!(poll!(&mut two).is_pending() && poll!(&mut three).is_pending());
        answer.send(()).unwrap();
        let Ok(one) = one.await;
        assert!(name(&one).contains("first"));
        let (Ok(two), Ok(three)) = (two.await, three.await);
        assert_eq!(
            (name(&two), name(&three)),
            ("`second` is no node of a lock".into(), name(&two))
        );
    }

    #[tokio::test]
    async fn a_look_that_is_given_up_serves_nobody() {
        let lists = Lists::default();
        let mut one = Box::pin(lists.look("a", pending::<Answer>()));
        assert!(poll!(&mut one).is_pending());
        let two = lists.look("a", ready(named("second")));
        pin!(two);
        assert!(poll!(&mut two).is_pending());
        drop(one);
        match poll!(&mut two) {
            Poll::Ready(Ok(two)) => assert!(name(&two).contains("second")),
            Poll::Pending => panic!("the line stands still"),
        }
    }

    #[tokio::test]
    async fn what_nobody_asks_for_is_forgotten() {
        let lists = Lists::default();
        for folder in ["a", "b", "c"] {
            let Ok(_) = lists.look(folder, ready(named("x"))).await;
        }
        assert_eq!(lists.0.lock().unwrap().len(), 1);
    }
}
