use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::engine::Engine;
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
        if let Some(shared) = slot.share(lock) {
            return shared;
        }
        let call =
            Call { engine, name: lock.name(), wait: options.wait, begun: engine.clock.now() };
        let free = slot.acquiring.try_lock().ok();
        let has_waited = free.is_none();
        let mut acquiring = match free {
            Some(free) => free,
            None => call.wait_for(&slot).await?,
        };
        if let Some(shared) = slot.share(lock) {
            return shared;
        }
        let wait = if has_waited { call.left()? } else { options.wait };
        let behind = call.behind(&mut acquiring);
        let acquired = lock.acquire_behind(options.wait(wait), Some(behind)).await;
        let guard = acquired.map_err(|error| call.in_all(error))?;
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

impl Slot {
    fn seat(&self) -> MutexGuard<'_, Weak<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another guard of the owner's hold, if it has one.
    fn share<O: 'static, E: 'static>(&self, lock: &Lock<O, E>) -> Option<Result<LockGuard>> {
        let seat = self.seat().upgrade()?;
        Some(match seat.is_held() {
            true => Ok(LockGuard::seated(seat)),
            false => Err(lock.engine().lost_error(lock.name())),
        })
    }

    fn depth(&self) -> usize {
        self.seat().strong_count()
    }
}

/// The right to acquire for an owner.
type Acquiring<'a> = tokio::sync::MutexGuard<'a, Arc<Silence>>;

/// An acquisition for an owner, from its call on. It waits for another of the same owner first, if
/// one is under way.
struct Call<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    wait: Wait,
    begun: Instant,
}

impl Call<'_> {
    /// Waits until no other acquisition of the owner is under way.
    async fn wait_for<'s>(&self, slot: &'s Slot) -> Result<Acquiring<'s>> {
        let Self { engine, name, wait, .. } = *self;
        if wait == Wait::No {
            return Err(Error::Taken { name: name.clone(), driver: engine.driver.id() });
        }
        // Even without a limit, since a timer ends with the runtime.
        let end = self.deadline().unwrap_or_else(|| engine.clock.now() + Duration::MAX);
        tokio::select! {
            biased;
            acquiring = slot.acquiring.lock() => Ok(acquiring),
            () = engine.stopping.cancelled() => Err(engine.shut_down_error()),
            slept = engine.inside(engine.clock.sleep_until(end)) => Err(match (slept, wait) {
                (Some(()), Wait::AtMost(patience)) => self.timed_out(patience),
                _ => engine.shut_down_error(),
            }),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::AtMost(patience) => Some(self.begun + patience),
            _ => None,
        }
    }

    /// How long to wait yet, for whoever has waited for another acquisition of the owner.
    fn left(&self) -> Result<Wait> {
        let (Some(deadline), Wait::AtMost(patience)) = (self.deadline(), self.wait) else {
            return Ok(self.wait);
        };
        let left = deadline.saturating_duration_since(self.engine.clock.now());
        // No time at all would be one request.
        if left.is_zero() { Err(self.timed_out(patience)) } else { Ok(Wait::AtMost(left)) }
    }

    /// Goes on where the acquisition before has come, and is the one before for the next.
    fn behind(&self, last: &mut Arc<Silence>) -> Behind {
        let silence = Arc::<Silence>::default();
        let before = std::mem::replace(last, Arc::clone(&silence));
        let silent_since = before.since().map(|since| since.max(self.begun));
        Behind { silent_since, silence }
    }

    fn timed_out(&self, waited: Duration) -> Error {
        let source = BoxError::from("its owner was acquiring it already");
        let (name, driver) = (self.name.clone(), self.engine.driver.id());
        Error::TimedOut { name, driver, waited, source: Some(source) }
    }

    /// The error of the acquisition, which knows only what was left of the wait.
    fn in_all(&self, error: Error) -> Error {
        match (error, self.wait) {
            (Error::TimedOut { name, driver, source, .. }, Wait::AtMost(waited)) => {
                Error::TimedOut { name, driver, waited, source }
            }
            (error, _) => error,
        }
    }
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
