//! The waiters of one locker for one lock take turns: only the front one asks and listens.
//!
//! This is for drivers that serve waiters in no order. With turns, a thousand waiters of a process
//! cost the backend as much as one, and the waiter that has a place there is the one that listens.
//! Turns are taken in order of arrival; a waiter that goes away, for whatever reason, passes its
//! turn on by being dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::LockName;
use crate::clock::Instant;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Each queue, with the number of its tickets.
    queues: Mutex<HashMap<LockName, (Arc<Queue>, usize)>>,
}

#[derive(Debug)]
struct Queue {
    /// Where the queue is found under its name, for as long as somebody is in it.
    turns: Arc<Turns>,
    name: LockName,
    /// The turn, as a permit, if nobody has it. Tokio's semaphores are first come, first served.
    turn: Semaphore,
    /// The word of the waiter whose turn it is. Those behind look at it when it matters; telling
    /// them of each change would wake them all at every ask.
    word: Mutex<Word>,
}

/// What those behind know of how the front waiter fares.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Word {
    /// Since when the backend has not answered it.
    pub(crate) unanswered: Option<Instant>,
    /// Whether its last ask failed.
    pub(crate) failed: bool,
    /// Whether it was ever answered, or a waiter whose turn it was before.
    pub(crate) answered: bool,
}

impl Turns {
    pub(crate) fn join(self: &Arc<Self>, name: &LockName) -> Ticket {
        let mut queues = lock(&self.queues);
        let (queue, has_turn) = match queues.entry(name.clone()) {
            Entry::Vacant(vacant) => {
                let queue = Arc::new(Queue {
                    turns: Arc::clone(self),
                    name: name.clone(),
                    turn: Semaphore::new(0),
                    word: Mutex::default(),
                });
                vacant.insert((Arc::clone(&queue), 1));
                (queue, true)
            }
            Entry::Occupied(mut occupied) => {
                let (queue, tickets) = occupied.get_mut();
                *tickets += 1;
                (Arc::clone(queue), queue.turn.try_acquire().map(SemaphorePermit::forget).is_ok())
            }
        };
        drop(queues);
        let has_turn = AtomicBool::new(has_turn);
        Ticket { queue, has_turn }
    }
}

/// A turn that has come to a waiter. The semaphore is never closed, so it is no error.
pub(crate) type Turn<'a> = Result<SemaphorePermit<'a>, AcquireError>;

/// A waiter's part in a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    has_turn: AtomicBool,
}

impl Ticket {
    /// Whether it is this waiter's turn.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.load(Ordering::Relaxed)
    }

    /// The turn, once it is this waiter's, to be [taken](Self::take) then. A future that took it
    /// would be larger, and waiters are many.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a turn that is not taken goes to the next.
    pub(crate) fn turn(&self) -> impl Future<Output = Turn<'_>> + Send {
        self.queue.turn.acquire()
    }

    /// Takes the turn, until the ticket is dropped.
    pub(crate) fn take(&self, turn: Turn<'_>) {
        turn.expect("the semaphore is never closed").forget();
        self.has_turn.store(true, Ordering::Relaxed);
    }

    /// What the front waiter last told.
    pub(crate) fn word(&self) -> Word {
        *lock(&self.queue.word)
    }

    /// Tells those behind.
    pub(crate) fn tell(&self, word: Word) {
        let mut last = lock(&self.queue.word);
        *last = Word { answered: last.answered || word.answered, ..word };
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = lock(&self.queue.turns.queues);
        let Entry::Occupied(mut queue) = queues.entry(self.queue.name.clone()) else { return };
        let (_, tickets) = queue.get_mut();
        *tickets -= 1;
        if *tickets == 0 {
            queue.remove();
            return;
        }
        drop(queues);
        if self.has_turn() {
            self.queue.turn.add_permits(1);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::{Turns, lock};
    use crate::{LockName, Namespace};

    #[test]
    fn a_turn_is_passed_on_and_a_queue_lasts_for_as_long_as_somebody_is_there() {
        let turns = Arc::new(Turns::default());
        let [a, b] = ["a", "b"].map(|name| LockName::new(&Namespace::default(), name).unwrap());
        let (first, second) = (turns.join(&a), turns.join(&a));
        assert!(first.has_turn() && !second.has_turn());
        assert!(turns.join(&b).has_turn(), "that is another lock");
        let mut turn = Box::pin(second.turn());
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(!turns.join(&a).has_turn(), "it is the second's");
        let Poll::Ready(its) = turn.as_mut().poll(&mut context) else { panic!("it has come") };
        second.take(its);
        assert!(second.has_turn() && !turns.join(&a).has_turn());
        drop(turn);
        drop(second);
        assert!(lock(&turns.queues).is_empty());
        assert!(turns.join(&a).has_turn());
    }

    #[test]
    fn a_turn_that_is_not_taken_goes_to_the_next() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let [first, second, third] = [(); 3].map(|()| turns.join(&name));
        let [mut seconds, mut thirds] = [&second, &third].map(|ticket| Box::pin(ticket.turn()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(seconds.as_mut().poll(&mut context).is_pending());
        assert!(thirds.as_mut().poll(&mut context).is_pending());
        drop(first);
        let Poll::Ready(untaken) = seconds.as_mut().poll(&mut context) else { panic!("its turn") };
        assert!(thirds.as_mut().poll(&mut context).is_pending());
        drop(untaken);
        assert!(thirds.as_mut().poll(&mut context).is_ready());
    }
}
