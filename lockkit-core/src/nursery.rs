//! Holds that are a few milliseconds old need no keeper yet.
//!
//! Most holds end before there is anything to do for them, and a task and its timers for each
//! would be most of what the engine costs. So a hold that was granted is left in a list, and one
//! task of the locker looks at the list every now and then and gives a keeper to those that are
//! still held. A young hold that ends otherwise than by
//! [`release`](crate::LockGuard::release) is [cleared up](Tenure::end) by a task of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::select;

use crate::engine::Engine;
use crate::keeper;
use crate::options::Renew;
use crate::tenure::Tenure;

/// How often the list is looked at. Two of these are well below a third of the shortest lease.
const PERIOD: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct Nursery(Mutex<Young>);

#[derive(Debug, Default)]
struct Young {
    holds: Vec<(Arc<Tenure>, Renew)>,
    /// Whether the task runs.
    attended: bool,
}

impl Nursery {
    /// Sees to it that the hold gets a keeper in time.
    pub(crate) fn add(&self, tenure: Arc<Tenure>, renew: Renew) {
        let engine = Arc::clone(&tenure.engine);
        if tenure.needs_keeper_within(2 * PERIOD) {
            return adopt(&engine, &tenure, renew);
        }
        let mut young = self.young();
        young.holds.push((tenure, renew));
        let is_attended = std::mem::replace(&mut young.attended, true);
        // A runtime that is shut down drops what is spawned at once, and that looks at the list.
        drop(young);
        if !is_attended {
            engine.spawn(Nurse::on_duty(&engine).attend());
        }
    }

    /// All holds there are. If there are none, the task may go: whatever comes next has another.
    fn take(&self) -> Option<Vec<(Arc<Tenure>, Renew)>> {
        let mut young = self.young();
        young.attended = !young.holds.is_empty();
        young.attended.then(|| std::mem::take(&mut young.holds))
    }

    /// All holds there are, which nobody attends to any more.
    fn abandon(&self) -> Vec<(Arc<Tenure>, Renew)> {
        std::mem::take(&mut *self.young()).holds
    }

    fn young(&self) -> MutexGuard<'_, Young> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever looks at the list. Whatever ends it before its duty ends, the end of its runtime
/// included, ends the holds in its care.
struct Nurse {
    engine: Arc<Engine>,
    on_duty: bool,
}

impl Nurse {
    fn on_duty(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), on_duty: true }
    }

    async fn attend(mut self) {
        loop {
            select! {
                () = tokio::time::sleep(PERIOD) => (),
                () = self.engine.stopping.cancelled() => (),
            }
            match self.take() {
                Some(holds) => {
                    holds.iter().for_each(|(tenure, renew)| adopt(&self.engine, tenure, *renew));
                }
                None => return,
            }
        }
    }

    /// The holds to take care of; none when its duty has ended.
    fn take(&mut self) -> Option<Vec<(Arc<Tenure>, Renew)>> {
        let holds = self.engine.nursery.take();
        // What comes from now on is in another's care.
        self.on_duty = holds.is_some();
        holds
    }
}

impl Drop for Nurse {
    fn drop(&mut self) {
        if self.on_duty {
            let holds = self.engine.nursery.abandon();
            holds.iter().for_each(|(tenure, _)| tenure.lose());
        }
    }
}

fn adopt(engine: &Engine, tenure: &Arc<Tenure>, renew: Renew) {
    if let Some(kept) = tenure.adopt() {
        engine.spawn(keeper::hold(kept, renew));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Nurse;
    use crate::clock::Clock;
    use crate::driver::{Claim, Grant, Vouch};
    use crate::engine::Engine;
    use crate::memory::MemoryDriver;
    use crate::options::Renew;
    use crate::tenure::{Tenure, Vouched};
    use crate::{Label, LockName, Namespace};

    fn engine() -> Arc<Engine> {
        let driver = Arc::new(MemoryDriver::new());
        Arc::new(Engine::new(driver, Clock::system(), Label::of_this_process()))
    }

    fn granted(engine: &Arc<Engine>) -> Arc<Tenure> {
        let name = LockName::new(&Namespace::default(), "a").unwrap();
        let claim = Claim::new(name, Duration::from_secs(30));
        let vouched = Vouched::new(Vouch::FromRequest, claim.now(), claim.ttl());
        Arc::new(Tenure::new(Arc::clone(engine), claim, &Grant::new(), vouched, None, None))
    }

    /// Between its last look at the list and its end, another thread may put something there.
    #[tokio::test]
    async fn a_nurse_that_leaves_takes_nobody_along() {
        let engine = engine();
        let mut leaving = Nurse::on_duty(&engine);
        assert!(leaving.take().is_none());
        let tenure = granted(&engine);
        engine.nursery.add(Arc::clone(&tenure), Renew::Auto);
        drop(leaving);
        assert!(tenure.is_held());
    }

    #[test]
    fn holds_without_a_nurse_are_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let engine = runtime.block_on(async { engine() });
        drop(runtime);
        let both = [granted(&engine), granted(&engine)];
        for tenure in &both {
            engine.nursery.add(Arc::clone(tenure), Renew::Auto);
        }
        assert!(both.iter().all(|tenure| !tenure.is_held()));
    }
}
