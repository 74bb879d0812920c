use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::guard::Seat;
use crate::{AcquireOptions, BoxError, Error, Lock, LockGuard, LockName, Result, Wait};

/// Somebody who may acquire a lock again while holding it. Clones are the same owner.
///
/// It is passed explicitly because tasks have no identity that survives a spawn: whoever is given
/// the owner is the owner. Re-entry is counted in this process, costs no request, works on every
/// driver, and keeps the fencing token. It works within one locker and its clones: to a locker that
/// was connected separately, the same `Owner` is another owner, which would wait for what the first
/// one holds.
///
/// ```
/// # use lockkit_core::{AcquireOptions, Locker, Owner, memory::MemoryDriver};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
/// let lock = Locker::new(MemoryDriver::new()).lock("account/7")?;
/// let (me, options) = (Owner::new(), AcquireOptions::new());
/// let outer = lock.acquire_as(&me, options).await?;
/// let inner = lock.acquire_as(&me, options).await?; // does not wait for itself
/// assert_eq!(inner.fencing_token(), outer.fencing_token());
/// drop(outer);
/// assert!(lock.try_acquire().await?.is_none()); // still held by `inner`
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Owner {
    slots: Arc<Mutex<HashMap<Key, Arc<Slot>>>>,
}

/// A lock of a locker.
type Key = (usize, LockName);

/// The hold of an owner on one lock.
#[derive(Default)]
struct Slot {
    /// Locked by whoever acquires for the owner, so that a second acquisition waits for the first
    /// one, not for its own owner's hold. What it has is from the last acquisition. Each has its own,
    /// since what is left of one whose caller has gone goes on.
    acquiring: tokio::sync::Mutex<Arc<Silence>>,
    seat: Mutex<Weak<Seat>>,
}

/// Since when the acquisitions of an owner have had no answer, if the last of them was given up for
/// that. Otherwise those behind would find it out one after the other, a lease each.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<Instant>>);

impl Silence {
    pub(crate) fn note(&self, since: Option<Instant>) {
        *self.lock() = since;
    }

    fn since(&self) -> Option<Instant> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An acquisition by an owner, behind others of the same owner.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Since when the one before has had no answer, as far as that concerns this one.
    pub(crate) silent_since: Option<Instant>,
    /// Where to note since when this one has had none.
    pub(crate) silence: Arc<Silence>,
}

impl Slot {
    fn seat(&self) -> MutexGuard<'_, Weak<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn depth(&self) -> usize {
        self.seat().strong_count()
    }
}

impl Owner {
    /// A new owner.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) async fn acquire<O: 'static, E: 'static>(
        &self,
        lock: &Lock<O, E>,
        options: AcquireOptions,
    ) -> Result<LockGuard> {
        let engine = lock.engine();
        engine.check_running()?;
        let slot = self.slot(lock);
        let (name, driver, clock) = (lock.name(), engine.driver.id(), &engine.clock);
        let shared = || {
            let seat = slot.seat().upgrade()?;
            Some(match seat.is_held() {
                true => Ok(LockGuard::seated(seat)),
                false => Err(Error::Lost { name: name.clone(), driver }),
            })
        };
        if let Some(outcome) = shared() {
            return outcome;
        }
        let called = clock.now();
        let deadline = match options.wait {
            Wait::AtMost(patience) => Some(called + patience),
            _ => None,
        };
        let timed_out = |waited| Error::TimedOut {
            name: name.clone(),
            driver,
            waited,
            source: Some(BoxError::from("its owner was acquiring it already")),
        };
        let never = || clock.now() + Duration::MAX;
        let free = slot.acquiring.try_lock().ok();
        let has_waited = free.is_none();
        let mut acquiring = match (free, options.wait) {
            (Some(free), _) => free,
            (None, Wait::No) => return Err(Error::Taken { name: name.clone(), driver }),
            (None, wait) => tokio::select! {
                biased;
                held = slot.acquiring.lock() => held,
                () = engine.stopping.cancelled() => return Err(engine.shut_down_error()),
                // Even without a limit, since a timer ends with the runtime.
                slept = engine.inside(clock.sleep_until(deadline.unwrap_or_else(never))) => {
                    return Err(match (slept, wait) {
                        (Some(()), Wait::AtMost(waited)) => timed_out(waited),
                        _ => engine.shut_down_error(),
                    });
                }
            },
        };
        if let Some(outcome) = shared() {
            return outcome;
        }
        let wait = options.wait;
        let options = match (deadline, wait) {
            (Some(deadline), Wait::AtMost(patience)) => {
                let left = deadline.saturating_duration_since(clock.now());
                // No time at all would be one request.
                if has_waited && left.is_zero() {
                    return Err(timed_out(patience));
                }
                options.wait(Wait::AtMost(left))
            }
            _ => options,
        };
        let silence = Arc::<Silence>::default();
        let before = std::mem::replace(&mut *acquiring, Arc::clone(&silence));
        let silent_since = before.since().map(|since| since.max(called));
        let behind = Behind { silent_since, silence };
        let acquired = lock.acquire_behind(options, Some(behind)).await;
        let guard = acquired.map_err(|error| match (error, wait) {
            (Error::TimedOut { name, driver, source, .. }, Wait::AtMost(waited)) => {
                Error::TimedOut { name, driver, waited, source }
            }
            (error, _) => error,
        })?;
        *slot.seat() = Arc::downgrade(guard.seat());
        Ok(guard)
    }

    pub(crate) fn depth<O: 'static, E: 'static>(&self, lock: &Lock<O, E>) -> usize {
        let slot = self.slot(lock);
        slot.depth()
    }

    fn slot<O: 'static, E: 'static>(&self, lock: &Lock<O, E>) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() == slots.capacity() {
            // Before the map grows, forget the locks that are neither held nor being acquired.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.depth() > 0);
        }
        let key = (Arc::as_ptr(lock.engine()) as usize, lock.name().clone());
        Arc::clone(slots.entry(key).or_default())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Owner;
    use crate::memory::MemoryDriver;
    use crate::{AcquireOptions, Locker};

    #[tokio::test]
    async fn locks_that_were_held_once_are_forgotten() {
        let (locker, me) = (Locker::new(MemoryDriver::new()), Owner::new());
        for name in 0..1_000 {
            let lock = locker.lock(&name.to_string()).unwrap();
            drop(lock.acquire_as(&me, AcquireOptions::new()).await.unwrap());
        }
        let slots = me.slots.lock().unwrap().len();
        assert!(slots < 100, "{slots}");
    }
}
