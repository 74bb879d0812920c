//! What is measured, one file each.
#![expect(clippy::exhaustive_structs, reason = "what has no settings is named as it is")]

mod contended;
mod hand_over;
mod many_names;
mod recovery;
mod uncontended;
mod waiters;

use tokio::task::JoinHandle;

use crate::{Result, Workload};

pub use contended::Contended;
pub use hand_over::HandOver;
pub use many_names::ManyNames;
pub use recovery::{Holder, Recovery};
pub use uncontended::Uncontended;
pub use waiters::Waiters;

/// All workloads that need nothing but a subject. [`Recovery`] needs a program that can be killed.
pub const ALL: [&dyn Workload; 5] = [&Uncontended, &HandOver, &Contended, &ManyNames, &Waiters];

const GRANTED_TWICE: &str = "it was granted what another holds";

/// Returns once the waiter has been refused, as it must be while another holds. A waiter that ends
/// before that has failed.
async fn until_refused<T>(
    refused: impl Future<Output = ()>,
    waiting: &mut JoinHandle<lockkit::Result<T>>,
) -> Result<()> {
    tokio::select! {
        () = refused => Ok(()),
        ended = waiting => {
            ended??;
            Err(GRANTED_TWICE.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use lockkit::Error;

    use super::until_refused;

    #[tokio::test]
    async fn who_fails_before_it_was_refused_is_not_waited_for() {
        let mut waiting = tokio::spawn(async { Err::<(), _>(Error::config("server", "away")) });
        let error = until_refused(pending(), &mut waiting).await.unwrap_err();
        assert!(error.to_string().contains("away"), "{error}");
    }
}
