//! Holds that are a few milliseconds old need no keeper yet.
//!
//! Most holds end before there is anything to do for them, and a task and its timers for each
//! would be most of what the engine costs. So a hold that was granted at once is left in a list,
//! and one task of the locker looks at the list every now and then and gives a keeper to those
//! that are still held. A young hold that ends otherwise than by
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
        if !std::mem::replace(&mut young.attended, true) {
            engine.spawn(Nurse(Arc::clone(&engine)).attend());
        }
    }

    fn young(&self) -> MutexGuard<'_, Young> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever looks at the list. Whatever ends it, the end of its runtime included, ends the holds in
/// its care.
struct Nurse(Arc<Engine>);

impl Nurse {
    async fn attend(self) {
        let Self(engine) = &self;
        loop {
            select! {
                () = tokio::time::sleep(PERIOD) => (),
                () = engine.stopping.cancelled() => (),
            }
            let mut young = engine.nursery.young();
            if young.holds.is_empty() {
                young.attended = false;
                return;
            }
            let holds = std::mem::take(&mut young.holds);
            drop(young);
            for (tenure, renew) in holds {
                adopt(engine, &tenure, renew);
            }
        }
    }
}

impl Drop for Nurse {
    fn drop(&mut self) {
        let holds = std::mem::take(&mut self.0.nursery.young().holds);
        holds.iter().for_each(|(tenure, _)| tenure.lose());
    }
}

fn adopt(engine: &Engine, tenure: &Arc<Tenure>, renew: Renew) {
    if let Some(kept) = tenure.adopt() {
        engine.spawn(keeper::hold(kept, renew));
    }
}
