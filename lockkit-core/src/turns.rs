//! Waiters of one locker on one name take turns: only the front one asks and listens.
//!
//! For drivers that serve waiters in no order, so that a thousand waiters of a process cost the
//! backend as much as one. Turns are taken in order of arrival; a waiter that goes away, for
//! whatever reason, passes its turn on by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::LockName;
use crate::clock::{Clock, Instant};

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Each with the number of its tickets.
    queues: Mutex<HashMap<LockName, (Arc<Queue>, usize)>>,
}

#[derive(Debug)]
struct Queue {
    /// One permit: the turn. Semaphores of tokio are first come, first served.
    turn: Semaphore,
    /// Since when the backend does not answer the waiter whose turn it is.
    unanswered: watch::Sender<Option<Instant>>,
}

impl Turns {
    /// Whether somebody waits for `name` already.
    pub(crate) fn has_waiters(&self, name: &LockName) -> bool {
        lock(&self.queues).contains_key(name)
    }

    pub(crate) fn join(self: &Arc<Self>, name: &LockName) -> Ticket {
        let new = || {
            (Arc::new(Queue { turn: Semaphore::new(1), unanswered: watch::Sender::new(None) }), 0)
        };
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

    /// Returns when the front waiter has had no answer for `limit`, nor this one since `joined`.
    pub(crate) async fn silence(&self, clock: &Clock, joined: Instant, limit: Duration) {
        let mut news = self.queue.unanswered.subscribe();
        loop {
            let unanswered = *news.borrow_and_update();
            let silence = async {
                match unanswered {
                    Some(since) => clock.sleep_until(since.max(joined) + limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = silence => return,
                // The sender lives as long as the ticket, so this is news.
                _ = news.changed() => (),
            }
        }
    }

    pub(crate) fn set_unanswered(&self, since: Option<Instant>) {
        self.queue.unanswered.send_if_modified(|old| std::mem::replace(old, since) != since);
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
