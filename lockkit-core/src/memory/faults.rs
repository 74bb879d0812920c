use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Operation;
use crate::driver::{DriverError, ErrorKind};

/// What is to go wrong with the next requests to a [`MemoryDriver`](super::MemoryDriver).
#[derive(Default)]
pub struct Faults {
    planned: Mutex<HashMap<Operation, VecDeque<Fault>>>,
}

impl Faults {
    /// Makes one request of this kind go wrong: the next one for which nothing is planned yet. Those
    /// that can are acquiring, renewing, releasing, and inspecting: a look or a list.
    pub fn inject(&self, operation: Operation, fault: Fault) {
        self.lock().entry(operation).or_default().push_back(fault);
    }

    pub(super) fn next(&self, operation: Operation) -> Option<Fault> {
        let mut planned = self.lock();
        if planned.is_empty() {
            return None;
        }
        let fault = planned.get_mut(&operation)?.pop_front();
        planned.retain(|_, faults| !faults.is_empty());
        fault
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Operation, VecDeque<Fault>>> {
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
    /// It is carried out and never answered, in breach of the driver's contract.
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
