use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Operation;
use crate::driver::{DriverError, ErrorKind};

/// What is to go wrong with the next requests to a [`MemoryDriver`](super::MemoryDriver).
#[derive(Default)]
pub struct Faults {
    planned: Mutex<HashMap<Operation, Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<Fault>,
    /// What all requests after those meet with.
    rest: Option<Fault>,
}

impl Faults {
    /// Makes one request of this kind go wrong: the next one for which nothing is planned yet. Those
    /// that can are acquiring, renewing, releasing, and inspecting: a look or a list.
    pub fn inject(&self, operation: Operation, fault: Fault) {
        self.lock().entry(operation).or_default().next.push_back(fault);
    }

    /// Makes all requests of this kind go wrong for which nothing else is planned, as during an
    /// outage, until the plans are [cleared](Self::clear).
    ///
    /// ```
    /// # use lockkit_core::driver::ErrorKind;
    /// # use lockkit_core::memory::{Fault, MemoryDriver};
    /// # use lockkit_core::{Locker, Operation};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// let backend = MemoryDriver::new();
    /// let locker = Locker::builder(backend.clone()).ttl(Duration::from_secs(30)).build()?;
    /// let guard = locker.lock("stock")?.acquire().await?;
    /// backend.faults().inject_always(Operation::Renew, Fault::Fail(ErrorKind::Unreachable));
    /// tokio::time::sleep(Duration::from_secs(25)).await;
    /// backend.faults().clear();
    /// tokio::time::sleep(Duration::from_secs(25)).await;
    /// assert!(guard.is_held());
    /// # Ok(()) }
    /// ```
    pub fn inject_always(&self, operation: Operation, fault: Fault) {
        self.lock().entry(operation).or_default().rest = Some(fault);
    }

    /// Makes nothing go wrong any more, unless it is under way.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub(super) fn next(&self, operation: Operation) -> Option<Fault> {
        let mut planned = self.lock();
        if planned.is_empty() {
            return None;
        }
        let plan = planned.get_mut(&operation)?;
        let fault = plan.next.pop_front().or(plan.rest);
        planned.retain(|_, plan| !plan.next.is_empty() || plan.rest.is_some());
        fault
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Operation, Plan>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faults").field(&*self.lock()).finish()
    }
}

/// What can go wrong with a request.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out, and fails at once.
    Fail(ErrorKind),
    /// It is lost on the way: not carried out, [`ErrorKind::Unknown`] after the call limit.
    LoseRequest,
    /// It is carried out and its answer is lost: [`ErrorKind::Unknown`] after the call limit.
    LoseAnswer,
    /// It is carried out this much later, even if the call limit is over by then.
    Delay(Duration),
    /// It is carried out at once and answered this much later, if the call limit allows.
    DelayAnswer(Duration),
    /// It is carried out and never answered, in breach of the driver's contract. Whoever acquires
    /// or holds the lock is told within a lease; whoever awaits a release waits for ever.
    Hang,
}

impl Fault {
    pub(super) async fn strike<T: Send + 'static>(
        self,
        limit: Duration,
        carry_out: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let unanswered = || DriverError::new(ErrorKind::Unknown, "the answer was lost");
        match self {
            Self::Fail(kind) => Err(DriverError::new(kind, "planned to fail")),
            Self::LoseRequest => {
                tokio::time::sleep(limit).await;
                Err(unanswered())
            }
            Self::LoseAnswer => {
                carry_out()?;
                tokio::time::sleep(limit).await;
                Err(unanswered())
            }
            Self::Delay(delay) => {
                // A request on its way arrives whether or not anybody waits for the answer.
                let late = tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    carry_out()
                });
                match tokio::time::timeout(limit, late).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) | Err(_) => Err(unanswered()),
                }
            }
            Self::DelayAnswer(delay) => {
                let answer = carry_out();
                tokio::time::sleep(delay.min(limit)).await;
                if delay > limit { Err(unanswered()) } else { answer }
            }
            Self::Hang => {
                carry_out()?;
                std::future::pending().await
            }
        }
    }
}
