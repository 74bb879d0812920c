//! What a quorum must know of a backend that is one of its nodes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::DriverError;
use crate::{Diagnosis, Namespace};

/// The part of a [`Driver`](super::Driver) that tells which backend it talks to, and since when
/// that backend remembers: for drivers over several drivers.
#[async_trait]
pub trait Node: Send + Sync {
    /// The run of the backend that the requests go to.
    ///
    /// If it is the same before and after a request, that run has answered the request. This asks
    /// the backend only where the connection is a new one, and takes `limit` at most.
    ///
    /// # Errors
    ///
    /// Any [`ErrorKind`](super::ErrorKind) except `Unknown`.
    async fn run(&self, limit: Duration) -> Result<Run, DriverError>;

    /// What [`Inspect::diagnose`](crate::driver::Inspect::diagnose) finds, for a driver over
    /// several, which grants no fencing tokens of this one: no advice is to check them, and a warning
    /// on `persistence` says what the backend forgets, but not what comes of it. `None` if the
    /// backend says the same to both.
    ///
    /// # Errors
    ///
    /// Those of [`Inspect::diagnose`](crate::driver::Inspect::diagnose).
    async fn diagnose_node(
        &self,
        namespace: &Namespace,
    ) -> Option<Result<Vec<Diagnosis>, DriverError>> {
        _ = namespace;
        None
    }
}

/// One run of a backend, from its start to its end. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    id: Arc<str>,
    age: Duration,
    durable: bool,
    primary: bool,
}

impl Run {
    /// The run with this id, which no other run has, of this backend or another. Unless more is
    /// said, it is taken to have just begun, on a primary that forgets everything when the run
    /// ends.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), age: Duration::ZERO, durable: false, primary: true }
    }

    /// Says how long the run has lasted, at least.
    #[must_use]
    pub fn lasting(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Says that the backend begins with all that it acknowledged in earlier runs.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Says that the backend copies another one.
    #[must_use]
    pub fn replica(mut self) -> Self {
        self.primary = false;
        self
    }

    /// What tells this run from all others.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How long the run had lasted, at least, when the backend was asked.
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Whether the backend began with all that it had acknowledged before.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Whether the backend decides by itself, and copies no other.
    pub fn is_primary(&self) -> bool {
        self.primary
    }
}
