use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkit_core::Namespace;
use lockkit_core::driver::{DriverError, ErrorKind};
use tokio::sync::watch;

/// What the checks of a suite ask for: where, how much of it at present, and whether they still may.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    namespaces: Mutex<BTreeSet<Namespace>>,
    under_way: watch::Sender<usize>,
    are_over: AtomicBool,
}

/// An ask that is under way.
pub(crate) struct Ask<'a>(&'a Asks);

impl Asks {
    pub(crate) fn begin(&self, namespace: &Namespace) -> Result<Ask<'_>, DriverError> {
        self.under_way.send_modify(|count| *count += 1);
        let ask = Ask(self);
        // Looked at once it is counted, so that who ends them all waits for it.
        if self.are_over.load(Ordering::SeqCst) {
            return Err(DriverError::new(ErrorKind::Misconfigured, "the suite was stopped"));
        }
        let mut namespaces = self.namespaces();
        if !namespaces.contains(namespace) {
            namespaces.insert(namespace.clone());
        }
        Ok(ask)
    }

    /// Lets none begin any more, and returns when none is under way.
    pub(crate) async fn end(&self) {
        self.are_over.store(true, Ordering::SeqCst);
        // The sender lives as long as `self`.
        _ = self.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn namespaces(&self) -> MutexGuard<'_, BTreeSet<Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}
