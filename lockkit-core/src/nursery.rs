//! What needs no task of its own while it is young.
//!
//! Most holds end before there is anything to do for them, and most requests are answered while
//! their caller waits for nothing else. A task and its timers for each would be most of what the
//! engine costs. So both are left in a list, and one task of the locker looks at the list every now
//! and then. It gives a keeper to the holds that are still held, and lets the requests that are
//! still under way go on by themselves: a caller may be long in coming back to one, since it may be
//! busy elsewhere in a `select!`, while the driver keeps for that request what all others need.
//!
//! The task ends when the list is empty, and an [alarm] begins it again a while after something was
//! put there. If the task began at once, it would be ready together with the one that sends the
//! request: of several such tasks, tokio hands some to another thread, and wakes that thread first.
//!
//! A young hold that ends in any other way than by [`release`](crate::LockGuard::release) is
//! [cleared up](Tenure::end) by a task of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::select;
use tokio::task::yield_now;

use crate::driven::Begun;
use crate::engine::Engine;
use crate::options::Renew;
use crate::tenure::Tenure;
use crate::{alarm, keeper};

/// How often the list is looked at. A hold that has something to do within two periods gets its
/// keeper at once.
///
/// Not more often: while a timer is due in the next few milliseconds, each wait for an answer sets
/// the timer of the processor, which takes up to 2 µs in a virtual machine.
const PERIOD: Duration = Duration::from_millis(25);

#[derive(Debug, Default)]
pub(crate) struct Nursery(Mutex<Young>);

#[derive(Debug, Default)]
struct Young {
    holds: Vec<(Arc<Tenure>, Renew)>,
    /// What callers have begun since the last look at the list.
    begun: Vec<Arc<Begun>>,
    /// What they had begun before that.
    older: Vec<Arc<Begun>>,
    /// Whether there is the task, or the alarm that begins it.
    attended: bool,
    /// Makes the alarm ring at once.
    alarm: Option<Waker>,
}

impl Young {
    /// Takes out the holds that have ended, before the list grows: the task never runs in a runtime
    /// that is entered for one call at a time, with futures that are ready at once.
    fn make_room(&mut self) -> Vec<(Arc<Tenure>, Renew)> {
        if self.holds.len() < self.holds.capacity() {
            return Vec::new();
        }
        let mut ended = std::mem::take(&mut self.holds);
        // Without a look at the clock, which may wake those who watch a hold: not under this mutex.
        let held = |(tenure, _): &mut (Arc<Tenure>, Renew)| !tenure.has_ended();
        self.holds.extend(ended.extract_if(.., held));
        self.holds.reserve(self.holds.len().max(16));
        ended
    }
}

impl Nursery {
    /// Sees to it that the hold gets a keeper in time.
    pub(crate) fn add(&self, tenure: Arc<Tenure>, renew: Renew) {
        let engine = Arc::clone(&tenure.engine);
        if tenure.needs_keeper_within(2 * PERIOD) {
            return adopt(&engine, &tenure, renew);
        }
        let mut young = self.young();
        let ended = young.make_room();
        young.holds.push((tenure, renew));
        Self::attend(young, &engine);
        drop(ended);
    }

    /// Sees to it that the work goes on. Until the work has a task of its own, the list's task, or
    /// its alarm, stands for it where keepers are waited for.
    pub(crate) fn watch(&self, engine: &Arc<Engine>, begun: &Arc<Begun>) {
        let mut young = self.young();
        // As in `make_room`.
        if young.begun.len() == young.begun.capacity() {
            young.begun.retain(|begun| begun.goes_on());
            let left = young.begun.len();
            young.begun.reserve(left.max(16));
        }
        young.begun.push(Arc::clone(begun));
        Self::attend(young, engine);
    }

    /// Has the list looked at now.
    pub(crate) fn rouse(&self) {
        let alarm = self.young().alarm.take();
        if let Some(alarm) = alarm {
            alarm.wake();
        }
    }

    fn attend(mut young: MutexGuard<'_, Young>, engine: &Arc<Engine>) {
        if std::mem::replace(&mut young.attended, true) {
            return;
        }
        // Whatever is dropped from here on, as when the runtime is shut down, looks at the list.
        drop(young);
        let nurse = Nurse::on_duty(engine);
        if let Some(_inside) = engine.enter() {
            let under_way = engine.under_way();
            let alarm = alarm::set(PERIOD, move || {
                let engine = Arc::clone(&nurse.engine);
                engine.nursery.young().alarm = None;
                engine.spawn(nurse.attend());
                drop(under_way);
            });
            let _spent = engine.nursery.young().alarm.replace(alarm);
        }
    }

    /// Everything that is to be seen to now. If there is nothing in the list, the task may go:
    /// whatever comes next gets another one.
    fn take(&self) -> Option<Due> {
        let mut young = self.young();
        young.begun.retain(|begun| begun.goes_on());
        let older = std::mem::take(&mut young.begun);
        let due = Due {
            holds: std::mem::take(&mut young.holds),
            begun: std::mem::replace(&mut young.older, older),
        };
        young.attended = !(due.is_empty() && young.older.is_empty());
        young.attended.then_some(due)
    }

    /// All holds there are, which nobody attends to any more.
    fn abandon(&self) -> Vec<(Arc<Tenure>, Renew)> {
        let young = std::mem::take(&mut *self.young());
        young.holds
    }

    fn young(&self) -> MutexGuard<'_, Young> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be seen to.
struct Due {
    holds: Vec<(Arc<Tenure>, Renew)>,
    begun: Vec<Arc<Begun>>,
}

impl Due {
    fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.begun.is_empty()
    }
}

/// Looks at the list. Whatever ends it before its duty ends, the end of its runtime included, ends
/// the holds in its care.
struct Nurse {
    engine: Arc<Engine>,
    on_duty: bool,
}

impl Nurse {
    fn on_duty(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), on_duty: true }
    }

    async fn attend(mut self) {
        while let Some(Due { holds, begun }) = self.take() {
            holds.iter().for_each(|(tenure, renew)| adopt(&self.engine, tenure, *renew));
            let mut is_held_up = false;
            for begun in begun {
                if begun.adopt(&self.engine) {
                    self.engine.nursery.watch(&self.engine, &begun);
                    is_held_up = true;
                }
            }
            // A shutdown does not wait for the period, nor keep others from this thread.
            if is_held_up {
                yield_now().await;
            }
            select! {
                () = tokio::time::sleep(PERIOD) => (),
                () = self.engine.stopping.cancelled() => (),
            }
        }
    }

    /// What to see to; `None` when its duty has ended.
    fn take(&mut self) -> Option<Due> {
        let due = self.engine.nursery.take();
        // What comes from now on is in another's care.
        self.on_duty = due.is_some();
        due
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
    use std::future::Future as _;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use tokio::task::yield_now;

    use super::Nurse;
    use crate::clock::Clock;
    use crate::driven::Driven;
    use crate::driver::{Claim, Grant, Vouch};
    use crate::engine::Engine;
    use crate::memory::MemoryDriver;
    use crate::options::Renew;
    use crate::tenure::{Phase, Tenure, Vouched};
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

    /// Nothing is left for the task to do between two calls, and so it never runs.
    #[test]
    fn holds_that_have_ended_take_no_room_where_the_task_never_runs() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let engine = runtime.block_on(async { engine() });
        let held = granted(&engine);
        runtime.block_on(async { engine.nursery.add(Arc::clone(&held), Renew::Auto) });
        for _ in 0..10_000 {
            let tenure = granted(&engine);
            runtime.block_on(async { engine.nursery.add(Arc::clone(&tenure), Renew::Auto) });
            tenure.end(Phase::Released);
        }
        let holds = engine.nursery.young().holds.len();
        assert!(holds < 100, "{holds}");
        drop((runtime, engine));
        assert!(!held.is_held(), "it was in the list all the time");
    }

    /// A runtime that nobody drives, while its locks are used from another executor.
    #[test]
    fn requests_that_are_over_take_no_room_where_the_task_never_runs() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let engine = runtime.block_on(async { engine() });
        for _ in 0..10_000 {
            // It is polled twice: only what waits for something is put there.
            let work = Driven::new(&engine, |mut caller| async move {
                yield_now().await;
                _ = caller.report(());
            });
            let mut work = pin!(work);
            let mut context = Context::from_waker(Waker::noop());
            assert!(work.as_mut().poll(&mut context).is_pending());
            assert!(work.as_mut().poll(&mut context).is_ready());
        }
        let begun = engine.nursery.young().begun.len();
        assert!(begun < 100, "{begun}");
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
