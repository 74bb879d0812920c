//! Waiters of one locker on one name take turns: only the front one asks and listens.
//!
//! For drivers that serve waiters in no order, so that a thousand waiters of a process cost the
//! backend as much as one. Turns are taken in order of arrival; a waiter that goes away, for
//! whatever reason, passes its turn on by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::LockName;
use crate::clock::Instant;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Each with the number of its tickets.
    queues: Mutex<HashMap<LockName, (Arc<Queue>, usize)>>,
}

#[derive(Debug)]
struct Queue {
    /// One permit: the turn. Semaphores of tokio are first come, first served.
    turn: Semaphore,
    /// Since when the backend does not answer the waiter whose turn it is. Those behind look at it
    /// when it matters; to be told of each change would wake them all at every ask.
    unanswered: Mutex<Option<Instant>>,
}

impl Turns {
    /// Whether somebody waits for `name` already.
    pub(crate) fn has_waiters(&self, name: &LockName) -> bool {
        lock(&self.queues).contains_key(name)
    }

    pub(crate) fn join(self: &Arc<Self>, name: &LockName) -> Ticket {
        let new = || (Arc::new(Queue { turn: Semaphore::new(1), unanswered: Mutex::default() }), 0);
        let queue = {
            let mut queues = lock(&self.queues);
            let (queue, tickets) = queues.entry(name.clone()).or_insert_with(new);
            *tickets += 1;
            Arc::clone(queue)
        };
        Ticket { turns: Arc::clone(self), name: name.clone(), queue }
    }
}

/// A waiter's part in a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    turns: Arc<Turns>,
    name: LockName,
    queue: Arc<Queue>,
}

impl Ticket {
    /// The turn, if nobody has it.
    pub(crate) fn turn_at_once(&self) -> Option<SemaphorePermit<'_>> {
        self.queue.turn.try_acquire().ok()
    }

    /// Returns when it is this waiter's turn, until the turn is dropped.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.queue.turn.acquire().await.expect("the semaphore is never closed")
    }

    /// Since when the front waiter has had no answer, if it waits for one.
    pub(crate) fn unanswered(&self) -> Option<Instant> {
        *lock(&self.queue.unanswered)
    }

    pub(crate) fn set_unanswered(&self, since: Option<Instant>) {
        *lock(&self.queue.unanswered) = since;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = lock(&self.turns.queues);
        if let Some((_, tickets)) = queues.get_mut(&self.name) {
            *tickets -= 1;
            if *tickets == 0 {
                queues.remove(&self.name);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Turns;
    use crate::{LockName, Namespace};

    #[test]
    fn a_queue_lasts_for_as_long_as_somebody_waits() {
        let turns = Arc::new(Turns::default());
        let [a, b] = ["a", "b"].map(|name| LockName::new(&Namespace::default(), name).unwrap());
        let [first, second] = [turns.join(&a), turns.join(&a)];
        assert!(turns.has_waiters(&a) && !turns.has_waiters(&b));
        let turn = first.turn_at_once();
        assert!(turn.is_some() && second.turn_at_once().is_none());
        drop(turn);
        drop(first);
        assert!(turns.has_waiters(&a) && second.turn_at_once().is_some());
        drop(second);
        assert!(!turns.has_waiters(&a));
    }
}
