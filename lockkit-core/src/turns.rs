//! The waiters of one locker for one lock take turns: only the front ones ask and listen.
//!
//! With turns, a thousand waiters of a process cost the backend as much as a few. Where it keeps no
//! order, one asks at a time, and is the one that listens. Where each that is refused has a place,
//! several have one, so that the next is there when the lock is handed over, and those that give up
//! and are replaced are never more than the backend can follow.
//!
//! Turns are taken in order of arrival; a waiter that goes away, for whatever reason, passes its
//! turn on when its ticket is dropped, if it has not passed it before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Of how many waiters it is the turn at a time.
    abreast: usize,
    /// The turns that nobody has, as permits. Tokio's semaphores are first come, first served.
    turn: Semaphore,
    /// The word of those whose turn it is. Those behind look at it when it matters; telling
    /// them of each change would wake them all at every ask.
    word: Mutex<Word>,
}

/// What those behind know of how the front waiters fare, and those who were there before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// Since when the backend has answered none of them, if one has asked since.
    pub(crate) unanswered: Option<Instant>,
    /// Whether an ask has failed since the last answer.
    pub(crate) failed: bool,
    /// When the last ask left that was answered.
    pub(crate) answered: Option<Instant>,
    /// How long the last answer took.
    pub(crate) took: Duration,
    /// For how long the last caller that went away had waited.
    pub(crate) left_after: Option<Duration>,
}

impl Turns {
    /// Joins the queue for a lock, in which it is the turn of `abreast` waiters at a time.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, abreast: usize) -> Ticket {
        let mut queues = lock(&self.queues);
        let (queue, has_turn) = match queues.entry(name.clone()) {
            Entry::Vacant(vacant) => {
                let queue = Arc::new(Queue {
                    turns: Arc::clone(self),
                    name: name.clone(),
                    abreast,
                    turn: Semaphore::new(abreast - 1),
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

    /// Whether it can be the turn of several waiters.
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.queue.abreast > 1
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

    /// Passes the turn on, and goes on to tell those behind.
    pub(crate) fn pass(&self) {
        if self.has_turn.swap(false, Ordering::Relaxed) {
            self.queue.turn.add_permits(1);
        }
    }

    /// What the front waiters last told.
    pub(crate) fn word(&self) -> Word {
        *lock(&self.queue.word)
    }

    /// Tells those behind of an ask that leaves.
    pub(crate) fn asks(&self, asked: Instant) {
        _ = lock(&self.queue.word).unanswered.get_or_insert(asked);
    }

    /// Tells those behind of the answer, at `now`, to what was asked then: to them it is as good as
    /// their own.
    pub(crate) fn is_answered(&self, asked: Instant, now: Instant) {
        let mut word = lock(&self.queue.word);
        let answered = word.answered.max(Some(asked));
        let took = now.saturating_duration_since(asked);
        *word = Word { unanswered: None, failed: false, answered, took, ..*word };
    }

    /// Tells those behind that there is no answer to what was asked then. Another waiter may have had
    /// one meanwhile.
    pub(crate) fn fails(&self, asked: Instant) {
        let mut word = lock(&self.queue.word);
        let since = word.answered.map_or(asked, |answered| answered.max(asked));
        _ = word.unanswered.get_or_insert(since);
        word.failed = true;
    }

    /// Tells those behind for how long somebody has waited who has gone away.
    pub(crate) fn is_left_after(&self, time: Duration) {
        lock(&self.queue.word).left_after = Some(time);
    }

    /// Tells those behind that nobody could hear before that.
    pub(crate) fn stood_still_until(&self, now: Instant) {
        if let Some(since) = &mut lock(&self.queue.word).unanswered {
            *since = now.max(*since);
        }
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
    use std::time::Duration;

    use super::{Turns, Word, lock};
    use crate::clock::Clock;
    use crate::{LockName, Namespace};

    #[test]
    fn a_turn_is_passed_on_and_a_queue_lasts_for_as_long_as_somebody_is_there() {
        let turns = Arc::new(Turns::default());
        let [a, b] = ["a", "b"].map(|name| LockName::new(&Namespace::default(), name).unwrap());
        let (first, second) = (turns.join(&a, 1), turns.join(&a, 1));
        assert!(first.has_turn() && !second.has_turn());
        assert!(turns.join(&b, 1).has_turn(), "that is another lock");
        let mut turn = Box::pin(second.turn());
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(!turns.join(&a, 1).has_turn(), "it is the second's");
        let Poll::Ready(its) = turn.as_mut().poll(&mut context) else { panic!("it has come") };
        second.take(its);
        assert!(second.has_turn() && !turns.join(&a, 1).has_turn());
        drop(turn);
        drop(second);
        assert!(lock(&turns.queues).is_empty());
        assert!(turns.join(&a, 1).has_turn());
    }

    #[test]
    fn several_have_their_turn_at_once() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let [first, second, third] = [(); 3].map(|()| turns.join(&name, 2));
        assert!(first.has_turn() && second.has_turn() && !third.has_turn());
        let mut turn = Box::pin(third.turn());
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(turn.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn an_answer_to_one_is_an_answer_to_all_and_silence_is_that_of_the_first() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let [first, second, third] = [(); 3].map(|()| turns.join(&name, 2));
        let early = Clock::simulated().now();
        let [late, latest] = [1, 2].map(|seconds| early + Duration::from_secs(seconds));
        first.asks(early);
        second.asks(late);
        first.fails(early);
        let silent = Word { unanswered: Some(early), failed: true, ..Word::default() };
        assert_eq!(third.word(), silent);
        second.is_answered(late, latest);
        let answered = Word {
            answered: Some(late),
            took: latest.saturating_duration_since(late),
            ..Word::default()
        };
        assert_eq!(third.word(), answered);
        // What fails was asked before that.
        first.fails(early);
        assert_eq!(third.word(), Word { unanswered: Some(late), failed: true, ..answered });
        first.asks(latest);
        assert_eq!(third.word().unanswered, Some(late));
        second.stood_still_until(latest);
        assert_eq!(third.word().unanswered, Some(latest));
    }

    #[test]
    fn a_turn_that_is_not_taken_goes_to_the_next() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let [first, second, third] = [(); 3].map(|()| turns.join(&name, 1));
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
