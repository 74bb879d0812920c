//! The holds of a driver by their claims, and the threads that work on them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkit_core::driver::{self, DriverError, ErrorKind, OwnerId};
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::hold::Hold;

/// How many of the runtime's blocking threads, 512 by default, a driver uses at once: if a disk
/// hangs, the others are left to the rest of the program.
const THREADS: usize = 32;

/// How many of these may work aside: the others are left to the claims.
const ASIDE: usize = 8;

/// How long until work that is to be done again is: at first, and at most.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(8);

/// How long closing may take.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);

/// What the claims hold. A claim is in here while it holds or somebody works for it.
#[derive(Debug)]
pub(crate) struct Claims {
    slots: Mutex<HashMap<OwnerId, Arc<Slot>>>,
    threads: Arc<Semaphore>,
    aside: Arc<Semaphore>,
}

/// Tokio's mutex serves in order: a release never overtakes the ask that it undoes.
type Slot = tokio::sync::Mutex<Option<Hold>>;

/// The answer of some work, or that it is to be done again, within this time at the latest.
type Part<T> = Result<ControlFlow<T, Duration>, DriverError>;

impl Claims {
    pub(crate) fn new() -> Arc<Self> {
        let [threads, aside] = [THREADS, ASIDE].map(|most| Arc::new(Semaphore::new(most)));
        Arc::new(Self { slots: Mutex::default(), threads, aside })
    }

    /// Works on what a claim holds, on a thread that may block.
    ///
    /// # Errors
    ///
    /// Those of the work; [`ErrorKind::Unreachable`] if it did not begin by the deadline,
    /// [`ErrorKind::Capacity`] if there is no thread for it, and [`ErrorKind::Unknown`] if it began
    /// and has not ended. In that case it goes on by itself, and later work for the claim waits for
    /// it.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        owner: OwnerId,
        deadline: Instant,
        mut work: impl FnMut(&mut Option<Hold>) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        self.work_again(owner, deadline, move |held| work(held).map(ControlFlow::Break)).await
    }

    /// Like [`work`](Self::work), and then again for as long as the work says so. In between it has
    /// no thread, and nobody else works for the claim.
    pub(crate) async fn work_again<T: Send + 'static>(
        self: &Arc<Self>,
        owner: OwnerId,
        deadline: Instant,
        mut work: impl FnMut(&mut Option<Hold>) -> Part<T> + Send + 'static,
    ) -> Result<T, DriverError> {
        let (visit, slot) = Visit::to(self, owner);
        let slot = begin(deadline, slot.lock_owned()).await?;
        let mut turn = Turn { slot, _visit: visit };
        let mut pause = SHORT;
        loop {
            let thread = begin(deadline, Arc::clone(&self.threads).acquire_owned()).await?;
            let working = start_blocking(move || {
                let answer = match work(&mut turn.slot) {
                    Ok(ControlFlow::Continue(left)) => {
                        Ok(ControlFlow::Continue((left, turn, work)))
                    }
                    Ok(ControlFlow::Break(answer)) => {
                        drop(turn);
                        Ok(ControlFlow::Break(answer))
                    }
                    Err(error) => {
                        drop(turn);
                        Err(error)
                    }
                };
                // The thread is given back last.
                drop(thread);
                answer
            });
            let left;
            match finish(deadline, working?).await? {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(rest) => (left, turn, work) = rest,
            }
            sleep(pause.min(left)).await;
            pause = LONG.min(2 * pause);
        }
    }

    /// Works on something that no claim holds, on one of the same threads, of which some are never
    /// used for that.
    ///
    /// # Errors
    ///
    /// As [`work`](Self::work).
    pub(crate) async fn work_aside<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let start = async {
            let aside = Arc::clone(&self.aside).acquire_owned().await;
            (aside, Arc::clone(&self.threads).acquire_owned().await)
        };
        let permits = begin(deadline, start).await?;
        let working = start_blocking(move || {
            let answer = work();
            drop(permits);
            answer
        });
        finish(deadline, working?).await
    }

    /// Ends all holds; a hold that is being worked on ends when that work does.
    pub(crate) async fn close(&self) {
        let slots = std::mem::take(&mut *self.slots());
        // If there is no thread for it, they are dropped here.
        let Ok(closing) = start_blocking(move || {
            drop(slots);
            Ok(())
        }) else {
            return;
        };
        if timeout(CLOSING_LIMIT, closing).await.is_err() {
            tracing::warn!("the lock files do not close within {CLOSING_LIMIT:?}");
        }
    }

    /// Every change of the map is one call.
    fn slots(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins work on one of the runtime's threads for blocking work.
///
/// # Errors
///
/// [`ErrorKind::Capacity`] if there is no thread; the work is then never begun. The future's are of
/// [`ErrorKind::Unknown`]: the work panicked, or the runtime ends.
pub(crate) fn start_blocking<T, W>(
    work: W,
) -> Result<impl Future<Output = Result<T, DriverError>> + Send + use<T, W>, DriverError>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, DriverError> + Send + 'static,
{
    let working = driver::start_blocking(work)
        .map_err(|error| DriverError::new(ErrorKind::Capacity, error))?;
    Ok(async {
        working.await.unwrap_or_else(|error| Err(DriverError::new(ErrorKind::Unknown, error)))
    })
}

async fn begin<T>(deadline: Instant, start: impl Future<Output = T>) -> Result<T, DriverError> {
    timeout_at(deadline, start).await.map_err(|_| {
        let text = "earlier requests are still being carried out";
        DriverError::new(ErrorKind::Unreachable, text)
    })
}

async fn finish<T>(
    deadline: Instant,
    working: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, DriverError> {
    timeout_at(deadline, working).await.unwrap_or_else(|_| {
        Err(DriverError::new(ErrorKind::Unknown, "the request is still being carried out"))
    })
}

/// Has the slot of a claim to itself. The visit ends with the slot free, so it is dropped last.
struct Turn {
    slot: OwnedMutexGuard<Option<Hold>>,
    _visit: Visit,
}

/// Keeps the slot of a claim in the map, and takes it out at the end of the last visit if nothing
/// is held.
struct Visit {
    claims: Arc<Claims>,
    owner: OwnerId,
    /// Until the visit ends.
    slot: Option<Arc<Slot>>,
}

impl Visit {
    fn to(claims: &Arc<Claims>, owner: OwnerId) -> (Self, Arc<Slot>) {
        let slot = Arc::clone(claims.slots().entry(owner).or_default());
        (Self { claims: Arc::clone(claims), owner, slot: Some(Arc::clone(&slot)) }, slot)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut slots = self.claims.slots();
        // Given back while the map is locked, so that one of several visits that end together is the
        // last.
        let Some(slot) = self.slot.take() else { return };
        let Entry::Occupied(entry) = slots.entry(self.owner) else { return };
        // Others get to the slot only through the map.
        let is_last = Arc::strong_count(&slot) == 2;
        let is_empty = || slot.try_lock().is_ok_and(|hold| hold.is_none());
        if Arc::ptr_eq(entry.get(), &slot) && is_last && is_empty() {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::mpsc;
    use std::time::Duration;

    use lockkit_core::driver::{Claim, DriverError, ErrorKind};
    use lockkit_core::{LockName, Namespace};
    use tokio::runtime::Builder;
    use tokio::time::{Instant, timeout};

    use super::{Claims, LONG, SHORT, THREADS};
    use crate::folder::Folder;
    use crate::hold::Hold;
    use crate::hold::tests::take;

    const HANG: Duration = Duration::from_secs(20);

    fn claim(name: &str) -> Claim {
        Claim::new(LockName::new(&Namespace::default(), name).unwrap(), HANG)
    }

    /// The disk hangs until the sender is dropped.
    fn hang() -> (mpsc::Sender<()>, impl Fn() -> Result<(), DriverError> + Send) {
        let (wake, hung) = mpsc::channel();
        let hang = move || {
            while hung.recv().is_ok() {}
            Ok(())
        };
        (wake, hang)
    }

    /// The thread of earlier work may not have come to its end yet.
    async fn no_trace_is_left(claims: &Claims) {
        let gone = async {
            while !claims.slots().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(HANG, gone).await.unwrap();
    }

    #[tokio::test]
    async fn an_ask_that_hangs_is_unknown_and_its_hold_is_found_and_released() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let (claims, claim) = (Claims::new(), claim("a"));
        let (wake, hang) = hang();
        let soon = || Instant::now() + Duration::from_millis(20);
        let asked = claims.work(claim.owner(), soon(), {
            let claim = claim.clone();
            move |held| {
                hang()?;
                *held = take(&folder, &claim)?;
                Ok(())
            }
        });
        assert_eq!(asked.await.unwrap_err().kind(), ErrorKind::Unknown);
        let early = claims.work(claim.owner(), soon(), |_| Ok(()));
        assert_eq!(early.await.unwrap_err().kind(), ErrorKind::Unreachable);

        drop(wake);
        let released = claims.work(claim.owner(), Instant::now() + HANG, |held| {
            Ok(held.take().is_some_and(Hold::end))
        });
        assert!(released.await.unwrap(), "the hold of the late ask was not found");
        no_trace_is_left(&claims).await;
    }

    /// A release that came in between would be followed by the grant that it was to undo.
    #[tokio::test]
    async fn between_two_tries_nobody_works_for_the_claim_and_a_drop_ends_it() {
        let (claims, owner) = (Claims::new(), claim("a").owner());
        let deadline = Instant::now() + HANG;
        let mut tries = 0;
        let (tried, mut tries_seen) = tokio::sync::mpsc::unbounded_channel();
        let mut asking = Box::pin(claims.work_again(owner, deadline, move |_| {
            tries += 1;
            tried.send(tries).unwrap();
            Ok(ControlFlow::<(), _>::Continue(HANG))
        }));
        let second = async { while tries_seen.recv().await.unwrap() < 2 {} };
        tokio::select! {
            _ = &mut asking => panic!("it came to an end"),
            () = second => (),
        }
        let mut released = Box::pin(claims.work(owner, deadline, |_| Ok(())));
        let third = async { while tries_seen.recv().await.unwrap() < 5 {} };
        tokio::select! {
            _ = &mut asking => panic!("it came to an end"),
            _ = &mut released => panic!("it came in between"),
            () = third => (),
        }
        drop(asking);
        released.await.unwrap();
        no_trace_is_left(&claims).await;
    }

    /// After the deadline, what came of it would be unknown.
    #[tokio::test(start_paused = true)]
    async fn the_last_try_comes_as_soon_as_the_work_has_to_end() {
        let (claims, begin) = (Claims::new(), Instant::now());
        let (limit, deadline) = (begin + 5 * LONG / 2, begin + 3 * LONG);
        let asked = claims.work_again(claim("a").owner(), deadline, move |_| {
            match limit.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Ok(ControlFlow::Break(())),
                left => Ok(ControlFlow::Continue(left)),
            }
        });
        asked.await.unwrap();
        assert!(Instant::now() < limit + SHORT, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn work_that_was_dropped_leaves_no_trace() {
        let (claims, claim) = (Claims::new(), claim("a"));
        let deadline = Instant::now() + HANG;
        // The first is at work, the others wait for it.
        let mut wakes = Vec::new();
        for _ in 0..3 {
            let (wake, hang) = hang();
            wakes.push(wake);
            let dropped = claims.work(claim.owner(), deadline, move |_| hang());
            tokio::select! {
                biased;
                _ = dropped => (),
                () = std::future::ready(()) => (),
            }
        }
        drop(wakes);
        claims.work(claim.owner(), deadline, |_| Ok(())).await.unwrap();
        no_trace_is_left(&claims).await;
    }

    /// Each thread's stack would be larger than any memory.
    #[test]
    fn where_there_is_no_thread_nothing_is_left_for_later() {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().thread_stack_size(usize::MAX / 4).build().unwrap();
        runtime.block_on(async {
            let (claims, claim) = (Claims::new(), claim("a"));
            for _ in 0..2 * THREADS {
                let asked = claims.work(claim.owner(), Instant::now() + HANG, |_| Ok(()));
                assert_eq!(asked.await.unwrap_err().kind(), ErrorKind::Capacity);
                assert!(claims.slots().is_empty(), "the work is kept for a later thread");
            }
            claims.close().await;
        });
    }

    #[tokio::test]
    async fn a_disk_that_hangs_leaves_threads_to_others() {
        let claims = Claims::new();
        let soon = Instant::now() + Duration::from_millis(20);
        let mut wakes = Vec::new();
        let hung = (0..2 * THREADS).map(|_| {
            let (wake, hang) = hang();
            wakes.push(wake);
            let claims = claims.clone();
            tokio::spawn(
                async move { claims.work(claim("a").owner(), soon, move |_| hang()).await },
            )
        });
        let hung: Vec<_> = hung.collect();
        let mut unknown = 0;
        for request in hung {
            let error = request.await.unwrap().unwrap_err();
            unknown += usize::from(error.kind() == ErrorKind::Unknown);
        }
        assert_eq!(unknown, THREADS);
        drop(wakes);
    }

    /// As lists of very many files do.
    #[tokio::test]
    async fn what_hangs_aside_leaves_threads_to_claims() {
        let claims = Claims::new();
        let soon = Instant::now() + Duration::from_millis(20);
        let mut wakes = Vec::new();
        for _ in 0..2 * THREADS {
            let (wake, hang) = hang();
            wakes.push(wake);
            claims.work_aside(soon, hang).await.unwrap_err();
        }
        let deadline = Instant::now() + HANG;
        claims.work(claim("a").owner(), deadline, |_| Ok(())).await.unwrap();
        drop(wakes);
        claims.work_aside(deadline, || Ok(())).await.unwrap();
    }
}
