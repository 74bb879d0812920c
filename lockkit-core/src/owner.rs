use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::guard::Seat;
use crate::{AcquireOptions, Error, Lock, LockGuard, LockName, Result, Wait};

/// Somebody who may acquire a lock again while holding it. Clones are the same owner.
///
/// It is passed explicitly because tasks have no identity that survives a spawn: whoever is given
/// the owner is the owner. Re-entry is counted in this process, costs no request, works on every
/// driver, and keeps the fencing token.
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

/// The hold of an owner on one lock. Whoever acquires for the owner locks it meanwhile, so that a
/// second acquisition waits for the first one, not for itself.
type Slot = tokio::sync::Mutex<Weak<Seat>>;

impl Owner {
    /// Somebody new.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) async fn acquire<O: 'static, E: 'static>(
        &self,
        lock: &Lock<O, E>,
        options: AcquireOptions,
    ) -> Result<LockGuard> {
        let slot = self.slot(lock);
        let (name, driver) = (lock.name(), lock.engine().driver.id());
        let clock = &lock.engine().clock;
        let deadline = match options.wait {
            Wait::AtMost(patience) => Some(clock.now() + patience),
            _ => None,
        };
        let mut held = match (options.wait, deadline) {
            (Wait::AtMost(waited), Some(deadline)) => tokio::select! {
                biased;
                held = slot.lock() => held,
                () = lock.engine().inside(clock.sleep_until(deadline)) => {
                    let name = name.clone();
                    return Err(Error::TimedOut { name, driver, waited, source: None });
                }
            },
            (Wait::No, _) => {
                slot.try_lock().map_err(|_| Error::Taken { name: name.clone(), driver })?
            }
            _ => slot.lock().await,
        };
        if let Some(seat) = held.upgrade() {
            return match seat.is_held() {
                true => Ok(LockGuard::seated(seat)),
                false => Err(Error::Lost { name: name.clone(), driver }),
            };
        }
        let options = match deadline {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(clock.now());
                options.wait(Wait::AtMost(left))
            }
            None => options,
        };
        let guard = lock.acquire_with(options).await?;
        *held = Arc::downgrade(guard.seat());
        Ok(guard)
    }

    pub(crate) fn depth<O: 'static, E: 'static>(&self, lock: &Lock<O, E>) -> usize {
        let slot = self.slot(lock);
        slot.try_lock().map_or(0, |seat| seat.strong_count())
    }

    fn slot<O: 'static, E: 'static>(&self, lock: &Lock<O, E>) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() == slots.capacity() {
            // Before the map grows, forget the locks that are neither held nor being acquired.
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().is_ok_and(|seat| seat.strong_count() > 0)
            });
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
